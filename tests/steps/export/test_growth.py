"""An export is what its source has, whenever the command has returned: nothing twice, none back."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import imagekiln
from imagekiln import BadInput
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.export.commits import read_export
from imagekiln.steps.export.rows import cut_rows
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import CARD_KEY, SUCCESS_KEY
from imagekiln.steps.storage import open_store
from tests import jobs
from tests.exports import (
    contents_by_id,
    images_by_id,
    list_keys,
    mend,
    read_images,
    require_manifest,
)
from tests.interleaving import Process, frozen, interleaving
from tests.runs import encoded, fill, not_ok, planned
from tests.texts import chance

FORMATS = ("parquet", "webdataset", "files")
IMAGES = 6
HISTORIES = 12
CRASHES = 3  # of processes, in a history
COLORS = ("red", "a/../b", None)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files have few images of noise."""
    cut = partial(cut_rows, file_bytes=4000, kind="parquet")
    monkeypatch.setattr(
        "imagekiln.steps.export.step.cut_rows", lambda tables, *_, **__: cut(tables)
    )


def make_night(folder: Path, night: str, failed: tuple[int, ...] = (), **job: object) -> PlanResult:
    """A finished run of noise under `folder / "out"`; some of its images failed."""
    rows = [
        {"prompt": f"number {place} of {night}", "id": f"row-{place}", "color": COLORS[place % 3]}
        for place in range(IMAGES)
    ]
    settings = {"limits": {"failed_share": 0.9}, "carry": ["color"], **job}
    output = str(folder / "out")
    run = planned(folder / f"prompts-{night}", output, rows, run_id=night, **settings)
    seed = sum(night.encode())
    outcomes = {place: encoded(seed + place) for place in range(IMAGES)}
    fill(run, outcomes | dict.fromkeys(failed, not_ok(0)))
    aggregate(run.uri)
    return run


def require_current(source: str, destination: str, newest_by: str = "image_id") -> None:
    """Fail unless an export has the images of its source, each once, and its manifest says so."""
    assert images_by_id(destination) == contents_by_id(source, newest_by)
    require_manifest(destination)


def holds(folder: Path | str, content: bytes) -> list[str]:
    """The keys of objects with these bytes in them."""
    store = open_store(str(folder))
    return [key for key in list_keys(store, "") if content in store.read(key)]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_follows_its_nights_their_retries_and_what_is_forgotten(
    tmp_path: Path, store_uri: str, kind: str
) -> None:
    output = str(tmp_path / "out")
    target = store_uri
    export = partial(imagekiln.export, output, target, format=kind, partition_by="color")

    first = make_night(tmp_path, "monday", failed=(1,))
    result = export()
    assert (result.images, result.added, result.dropped, result.unchanged) == (5, 5, 0, 0)
    require_current(output, target)

    make_night(tmp_path, "tuesday")
    result = export()
    assert (result.images, result.added, result.dropped, result.unchanged) == (11, 6, 0, 5)
    require_current(output, target)

    mend(first)
    result = export()
    assert (result.added, result.dropped, result.runs) == (1, 0, 2)
    require_current(output, target)

    image_id, content = min(contents_by_id(output).items())
    assert holds(target, content)
    imagekiln.forget(output, ids=[image_id], remove=True)
    make_night(tmp_path, "friday")
    result = export()
    assert (result.added, result.dropped, result.unchanged) == (6, 1, 11)
    require_current(output, target)
    assert not holds(target, content)
    store = open_store(target)
    assert f"# {result.images} generated images".encode() in store.read(CARD_KEY)

    before = {key: store.read(key) for key in list_keys(store, "")}
    result = export()
    assert (result.added, result.dropped, result.unchanged) == (0, 0, 17)
    assert {key: store.read(key) for key in list_keys(store, "")} == before


def test_forget_brings_the_exports_that_it_names_up_to_date(tmp_path: Path) -> None:
    run = make_night(tmp_path, "monday")
    make_night(tmp_path, "tuesday")
    output = str(tmp_path / "out")
    exports = [tmp_path / "of-run", tmp_path / "of-output"]
    for source, target in zip((run.uri, output), exports, strict=True):
        imagekiln.export(source, target, format="webdataset")
    image_id = min(contents_by_id(run.uri))
    for source in (run.uri, output):
        for remove in (False, True):
            imagekiln.forget(source, ids=[image_id], exports=exports, remove=remove)
    require_current(run.uri, str(exports[0]))
    require_current(output, str(exports[1]))


def test_files_have_the_columns_of_the_first_ones(tmp_path: Path) -> None:
    make_night(tmp_path, "monday")
    target = tmp_path / "export"
    export = partial(imagekiln.export, str(tmp_path / "out"), target)
    export()
    make_night(tmp_path, "tuesday", carry=[])
    make_night(tmp_path, "friday", gates={"near_duplicate": {}})
    export()
    schemas = {str(pq.read_schema(path)) for path in target.glob("data/*.parquet")}
    assert len(schemas) == 1
    assert "color" in schemas.pop()


@pytest.mark.parametrize("kind", FORMATS)
def test_images_of_a_run_that_is_gone_stay_but_for_files_with_one_that_a_newer_run_has(
    tmp_path: Path, kind: str
) -> None:
    gone = make_night(tmp_path, "monday")
    output = str(tmp_path / "out")
    target = tmp_path / "export"
    export = partial(imagekiln.export, output, target, format=kind, newest_by="id")
    export()
    make_night(tmp_path, "tuesday", failed=(0, 1, 2))
    export()
    expected = images_by_id(str(target))
    shutil.rmtree(gone.uri)
    assert export().unchanged == IMAGES
    assert images_by_id(str(target)) == expected

    newest = make_night(tmp_path, "friday", failed=(1, 2, 3, 4, 5))
    result = export()
    images = images_by_id(str(target))
    assert contents_by_id(newest.uri).items() < images.items()
    assert (result.added, result.unchanged) == (1, len(images.items() & expected.items()))
    assert IMAGES / 2 <= result.unchanged < IMAGES
    require_manifest(str(target))


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_that_is_killed_before_any_write_is_resumed(tmp_path: Path, kind: str) -> None:
    make_night(tmp_path, "monday")
    output = str(tmp_path / "out")
    begun = tmp_path / "begun"
    export = partial(imagekiln.export, output, format=kind)
    export(begun)
    make_night(tmp_path, "tuesday")
    imagekiln.forget(output, ids=[min(images_by_id(str(begun)))], remove=True)
    writes = 0
    is_done = False
    while not is_done:
        writes += 1
        target = tmp_path / "killed"
        shutil.copytree(begun, target)
        with interleaving(target, lambda *_: None):
            process = Process("killed", partial(export, target))
            process.step_to_write(writes)
            is_done = process.is_done
            process.kill(torn=True)
        result = export(target)
        require_current(output, str(target))
        assert result.images == 2 * IMAGES - 1
        shutil.rmtree(target)
    assert writes > 10


@pytest.mark.parametrize("key", ["commits/000000.json", "commits/000001.json"])
def test_who_sleeps_while_an_image_is_forgotten_starts_over(tmp_path: Path, key: str) -> None:
    output = str(tmp_path / "out")
    make_night(tmp_path, "monday")
    target = tmp_path / "export"
    image_id, content = min(contents_by_id(output).items())
    export = partial(imagekiln.export, output, target)
    with interleaving(target, lambda *_: None):
        late = frozen(export, "create", key)
        imagekiln.forget(output, ids=[image_id], remove=True)
        export()
        assert not holds(target, content)
        late.finish()
    assert late.error is None
    assert not holds(target, content)
    require_current(output, str(target))


def test_a_dropped_file_that_a_sleeper_brings_back_goes_with_the_next_export(
    tmp_path: Path,
) -> None:
    output = str(tmp_path / "out")
    make_night(tmp_path, "monday")
    target = tmp_path / "export"
    image_id, content = next(iter(contents_by_id(output).items()))
    export = partial(imagekiln.export, output, target, format="files")
    with interleaving(target, lambda *_: None):
        late = frozen(export, "create", ".png")
        imagekiln.forget(output, ids=[image_id], remove=True)
        export()
        late.step()
        late.kill()
    assert holds(target, content)
    export()
    assert not holds(target, content)
    require_current(output, str(target))


def check_commit(target: Path) -> None:
    """Fail unless the highest commit names files that are there, and no image twice."""
    head = read_export(open_store(str(target)))
    if head is None:
        return
    files = {file.key for file in head.commit.files}
    ids = [image_id for (key, _), (image_id, _) in read_images(str(target)).items() if key in files]
    assert len(ids) == len(set(ids)) == head.commit.images
    assert all((target / piece).exists() for piece in head.commit.pieces)


@pytest.mark.slow
def test_whatever_processes_do_the_last_export_is_right(tmp_path: Path) -> None:
    first = make_night(tmp_path, "monday", failed=(1, 4))
    make_night(tmp_path, "tuesday")
    original = shutil.copytree(tmp_path / "out", tmp_path / "original")
    ids = sorted(contents_by_id(str(original)))
    for number in range(HISTORIES):
        choose = chance(number)
        shutil.rmtree(tmp_path / "out")
        shutil.copytree(original, tmp_path / "out")
        target = tmp_path / f"export-{number}"
        output = str(tmp_path / "out")
        export = partial(imagekiln.export, output, target)
        changes: list[Callable[[], object]] = [
            partial(imagekiln.forget, output, ids=[choose.choice(ids)], remove=True),
            partial(imagekiln.forget, first.uri, ids=[choose.choice(ids)], remove=True),
            partial(mend, first),
        ]
        with interleaving(target, lambda *_: None):
            processes = [Process(str(place), export) for place in range(3)]
            crashes = 0
            while any(not process.is_done for process in processes):
                process = choose.choice(processes)
                process.step(choose.randint(1, 12))
                check_commit(target)
                if changes and not choose.randint(0, 6):
                    changes.pop(choose.randrange(len(changes)))()
                if crashes < CRASHES and not choose.randint(0, 15):
                    crashes += 1
                    process.kill(torn=True)
                    processes.append(Process(f"again-{crashes}", export))
        for change in changes:
            change()
        for process in processes:
            if not isinstance(process.error, TryAgain | None):
                raise process.error
        export()
        require_current(output, str(target))


def test_an_export_keeps_its_settings_and_its_source(tmp_path: Path) -> None:
    first = make_night(tmp_path, "monday")
    second = make_night(tmp_path, "tuesday")
    output = str(tmp_path / "out")
    target = tmp_path / "export"
    imagekiln.export(first.uri, target)
    before = jobs.files(target)
    others: list[dict[str, Any]] = [
        {"format": "webdataset"},
        {"newest_by": "id"},
        {"partition_by": "color"},
        {"file_size": "1GB"},
    ]
    for settings in others:
        with pytest.raises(BadInput, match=r"holds an export with .*, and this one has"):
            imagekiln.export(first.uri, target, **settings)
    for source in (second.uri, output):
        with pytest.raises(BadInput, match="is not the run monday that was exported to"):
            imagekiln.export(source, target)
    assert jobs.files(target) == before
    moved = shutil.copytree(first.uri, tmp_path / "moved" / "monday")
    assert imagekiln.export(moved, target).unchanged == IMAGES
    assert (target / SUCCESS_KEY).read_text() == f"{IMAGES} images, commit 1\n"
