"""Stores on a local disk, whatever state it is in."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, StorageRefused, TryAgain
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.storage import local, open_store
from imagekiln.steps.storage.local import LocalStore
from tests import jobs
from tests.mounts import fill, make_read_only, small_disk

NOBODY = 65534
PROMPTS = {"prompt": [f"a red circle number {number}" for number in range(40)]}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", kibibytes=1024) as folder:
        yield folder


def contents(folder: Path) -> list[str]:
    """Every file below the folder, hidden ones too."""
    return sorted(jobs.files(folder))


def test_an_object_has_its_name_once_its_bytes_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    sync = os.fsync

    def note_sync(handle: int) -> None:
        status = os.fstat(handle)
        events.append(status.st_size if stat.S_ISREG(status.st_mode) else "folder")
        sync(handle)

    def note_name(_source: object, name: Path) -> None:
        events.append(name.name)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", note_name)
    monkeypatch.setattr(Path, "replace", note_name)
    store = LocalStore(tmp_path)
    store.create("part", bytes(10))
    store.replace("summary.json", bytes(20))
    assert events == [10, "part", "folder", 20, "summary.json", "folder"]


def test_full_disk_takes_no_half_object(disk: Path) -> None:
    store = LocalStore(disk)
    store.replace("summary.json", b"old")
    for write in (store.create, store.replace):
        with pytest.raises(TryAgain, match=r"the disk is full, .* Free some space"):
            write("summary.json" if write == store.replace else "part", bytes(2**21))
    assert contents(disk) == ["summary.json"]
    assert store.read("summary.json") == b"old"
    assert store.create("part", bytes(2**19))


def test_shard_on_a_full_disk_keeps_whole_parts_and_resumes(disk: Path, tmp_path: Path) -> None:
    # Imported here since torch is slow to import, and other tests need none.
    from imagekiln.steps.generate.start import generate

    settings = {"steps": 1}
    planned = jobs.plan(tmp_path, PROMPTS, output=str(disk), defaults=settings, part={"images": 8})
    ballast = fill(disk, kibibytes_left=150)
    with pytest.raises(TryAgain, match=r"images/00000-000\d.parquet: the disk is full") as raised:
        generate(planned.uri, 0)
    assert raised.value.exit_code == 75
    store = open_store(planned.uri)
    shard = read_shard(store, planned.plan, 0)
    missing = missing_parts(store, shard)
    assert 0 < len(missing) < len(shard)
    ballast.unlink()
    done = generate(planned.uri, 0)
    assert done is not None
    assert done.parts == len(missing)
    assert missing_parts(store, shard) == []
    assert not [name for name in contents(disk) if ".writing" in name]


def test_read_only_disk_is_bad_input(disk: Path) -> None:
    store = LocalStore(disk)
    store.create("a", b"x")
    make_read_only(disk)
    assert store.read("a") == b"x"
    for write in (store.create, store.replace):
        with pytest.raises(
            BadInput, match=r"cannot be used \(Read-only file system\)\. Choose another path"
        ):
            write("b", b"x")


def test_folder_without_permission_is_bad_input() -> None:
    with tempfile.TemporaryDirectory() as outside:  # nobody else may look into pytest's own folders
        Path(outside).chmod(0o755)
        store = LocalStore(Path(outside))
        store.create("closed/a", b"x")
        (Path(outside) / "closed/a").chmod(0)
        (Path(outside) / "closed").chmod(0o555)
        with powerless():
            for action in (lambda: store.create("closed/b", b"x"), lambda: store.read("closed/a")):
                with pytest.raises(BadInput, match=r"access was refused .*permissions") as raised:
                    action()
                assert raised.type is StorageRefused
        (Path(outside) / "closed").chmod(0o755)
        assert contents(Path(outside)) == ["closed/a"]


@contextmanager
def powerless() -> Iterator[None]:
    """Give up root's right to ignore permissions, where the tests run as root."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_disk_without_hard_links_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_links(*_: object) -> None:  # as FAT and most object stores mounted as folders answer
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(BadInput, match="has no hard links"):
        LocalStore(tmp_path).create("a", b"x")
    assert contents(tmp_path) == []


def test_every_folder_that_was_made_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(local, "sync_folder", synced.append)
    store = LocalStore(tmp_path / "datasets" / "postcards")
    store.create("images/a", b"x")
    above = [tmp_path, tmp_path / "datasets", tmp_path / "datasets" / "postcards"]
    assert synced == [*above, above[-1] / "images"]
    synced.clear()
    store.replace("images/b", b"x")
    assert synced == [above[-1] / "images"]


@pytest.mark.parametrize("key", ["../secret", "/etc/passwd", "images/../../secret", "a//b", "./a"])
def test_key_that_leads_out_of_the_folder_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "secret").write_bytes(b"a secret")
    store = LocalStore(tmp_path / "run")
    store.create("images/a", b"x")
    for action in (
        lambda: store.read(key),
        lambda: store.exists(key),
        lambda: store.create(key, b"x"),
        lambda: store.replace(key, b"x"),
        lambda: store.remove(key),
        lambda: list(store.list_folder(key)),
    ):
        with pytest.raises(BadInput, match="is not the name of an object in it"):
            action()
    assert contents(tmp_path) == ["run/images/a", "secret"]


def test_nothing_is_written_listed_or_removed_behind_a_link(tmp_path: Path) -> None:
    other = LocalStore(tmp_path / "other")
    other.create("images/a", b"of somebody else")
    store = LocalStore(tmp_path / "run")
    store.create("plan.json", b"{}")
    (tmp_path / "run" / "images").symlink_to(tmp_path / "other" / "images")
    for action in (
        lambda: store.create("images/b", b"x"),
        lambda: store.replace("images/a", b"x"),
        lambda: store.remove("images/a"),
    ):
        with pytest.raises(BadInput, match="run/images: is a link"):
            action()
    assert list(store.list_folder("images")) == []
    assert [entry.key for entry in store.list_folder("")] == ["plan.json"]
    assert store.read("images/a") == b"of somebody else"  # as readers of caches rely on
    assert other.read("images/a") == b"of somebody else"


def test_pipe_or_device_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(BadInput, match="is a pipe or a device"):
            LocalStore(tmp_path).read(name)
