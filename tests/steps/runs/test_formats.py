"""Formats whose images lie beside the commit: parts are whole or missing, whoever else writes them.

`verify` finds whatever is wrong in them. `test_parquet_format.py` has the format with one object.
"""

import io
import json
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.aggregate.card import data_file_patterns
from imagekiln.steps.aggregate.report.page import FORMAT_PHRASES
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import Png
from imagekiln.steps.local import run
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.files_format import FilesFormat
from imagekiln.steps.runs.formats import PART_FORMATS, format_of, recover_parts
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, OUTSCORED_STATUS, EncodedImage
from imagekiln.steps.runs.keys import (
    IMAGE_KEY_PATTERN,
    IMAGES_PREFIX,
    PART_IMAGES_KEY_PATTERN,
    manifest_key,
    shard_key,
    tar_key,
)
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runs.tables import (
    IMAGE_ROW_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    OUTCOME_SCHEMA,
    read_table,
)
from imagekiln.steps.runs.webdataset_format import INDEX_MEMBER
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from tests.jobs import files as files_of
from tests.models import scratch
from tests.runs import PROMPTS, encoded, fill, job, not_ok, planned, write_prompts
from tests.s3 import S3_AMONG_SLOW

INDEXED_FORMATS = ["webdataset", "files"]
IMAGES = [encoded(0), not_ok(1), encoded(2), encoded(3)]
BEST: dict[str, object] = {
    "scores": {"seeds": {"kind": "own", "entry": "tests.scorers:SeedScore"}},
    "keep": "best 1 of 2 by seeds",
}
OTHER_IMAGES = [replace(encoded(index + 9), index_in_part=index) for index in range(4)]


@pytest.fixture(params=INDEXED_FORMATS)
def format_name(request: pytest.FixtureRequest) -> str:
    """The name of each format in turn."""
    return str(request.param)


def plan_of(folder: Path, format_name: str, rows: int = 8, **settings: object) -> PlanResult:
    return planned(folder, str(folder / "out"), PROMPTS[:rows], format=format_name, **settings)


def copy_of(original: PlanResult, target: Path) -> PlanResult:
    copytree(original.uri, target)
    return replace(original, uri=str(target))


def first_part(planned_run: PlanResult) -> Part:
    return read_shard(open_store(planned_run.uri), planned_run.plan, 0)[0]


def commit(planned_run: PlanResult, images: list[EncodedImage]) -> None:
    packed = format_of(planned_run.plan.job).pack(first_part(planned_run), images)
    packed.commit(open_store(planned_run.uri))


def remove_index(planned_run: PlanResult) -> None:
    Path(planned_run.uri, first_part(planned_run).key).unlink()


def objects_of(planned_run: PlanResult) -> dict[str, bytes]:
    """All objects of the images and their indexes."""
    files = files_of(Path(planned_run.uri))
    return {key: content for key, content in files.items() if key.startswith(("images/", "index/"))}


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


class DyingStore(LocalStore):
    """A run's folder that fails for good after so many writes, as if the process were killed."""

    def __init__(self, planned_run: PlanResult, writes: int) -> None:
        super().__init__(Path(planned_run.uri))
        self.writes_left = writes
        self.written: list[str] = []

    def create(self, key: str, data: bytes) -> bool:
        self._count(key)
        return super().create(key, data)

    def replace(self, key: str, data: bytes) -> None:
        self._count(key)
        super().replace(key, data)

    def _count(self, key: str) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise KeyboardInterrupt
        self.written.append(key)


def test_every_format_is_stored_reported_and_loaded_and_its_leftovers_found(tmp_path: Path) -> None:
    formats = {*get_args(Job.model_fields["format"].annotation)}
    assert {*PART_FORMATS} == {*FORMAT_PHRASES} == {*data_file_patterns(Png())} == formats
    for name in formats:
        planned_run = plan_of(tmp_path / name, name)
        part = first_part(planned_run)
        keys = {part.key, *format_of(planned_run.plan.job).object_keys(part)}
        for key in keys:
            is_index = not key.startswith(IMAGES_PREFIX)
            assert (
                is_index
                or PART_IMAGES_KEY_PATTERN.fullmatch(key)
                or IMAGE_KEY_PATTERN.fullmatch(key)
            )


@pytest.mark.quick_cases(1)
@S3_AMONG_SLOW
@pytest.mark.parametrize("format_name", INDEXED_FORMATS)
def test_whole_job_in_each_format_makes_the_images_that_parquet_has(
    store_uri: str, tmp_path: Path, format_name: str
) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet", PROMPTS[:6])
    sizes = {"batch": {"images": 2}, "part": {"images": 4}}
    result = run(job(prompts, store_uri, format=format_name, **sizes))
    assert verify(result.uri).ok == result.summary.ok == 6
    expected = _manifest_in_parquet()
    manifest = read_table(open_store(result.uri), manifest_key(0)).select(expected.column_names)
    assert manifest.equals(expected)
    assert run(job(prompts, store_uri, format=format_name, **sizes)).before


@cache
def _manifest_in_parquet() -> pa.Table:
    """What the same job says of its images as Parquet, made once."""
    folder = scratch("parquet")
    prompts = write_prompts(folder / "prompts.parquet", PROMPTS[:6])
    sizes = {"batch": {"images": 2}, "part": {"images": 4}}
    made = run(job(prompts, str(folder / "out"), **sizes))
    columns = ["image_id", "prompt", "seed", "status", "byte_size", "sha256", "pixels_sha256"]
    return read_table(open_store(made.uri), manifest_key(0)).select(columns)


def test_manifest_names_an_object_and_the_range_of_it_that_is_the_image(
    tmp_path: Path, format_name: str
) -> None:
    planned_run = plan_of(tmp_path, format_name)
    fill(planned_run, {1: not_ok(1)})
    aggregate(planned_run.uri, failed_share=1)
    manifest = read_table(open_store(planned_run.uri), manifest_key(0)).to_pylist()
    failed = manifest.pop(1)
    assert (failed["status"], failed["byte_offset"]) == ("failed", None)
    assert failed["part"] == "index/00000-0000.parquet"
    for row, index in zip(manifest, (0, 2, 3, 0, 1, 2, 3), strict=True):
        content = Path(planned_run.uri, row["part"]).read_bytes()
        assert (
            content[row["byte_offset"] : row["byte_offset"] + row["byte_size"]]
            == encoded(index).content
        )


def test_same_images_give_the_same_objects(tmp_path: Path, format_name: str) -> None:
    one = plan_of(tmp_path / "one", format_name, run_id="run")
    other = plan_of(tmp_path / "other", format_name, run_id="run")
    commit(one, IMAGES)
    commit(other, IMAGES[::-1])
    assert objects_of(one) == objects_of(other)


def test_commit_comes_last(tmp_path: Path, format_name: str) -> None:
    planned_run = plan_of(tmp_path, format_name)
    store = DyingStore(planned_run, 100)
    format_of(planned_run.plan.job).pack(first_part(planned_run), IMAGES).commit(store)
    *images, index = store.written
    assert index == "index/00000-0000.parquet"
    suffixes = [Path(key).suffix for key in images]
    if format_name == "webdataset":
        assert suffixes == [".tar"]
        return
    assert sorted(suffixes) == [".json"] * 4 + [".png"] * 3
    for sidecar in (key for key in images if key.endswith(".json")):
        image = sidecar.replace(".json", ".png")
        assert image not in images[images.index(sidecar) :]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("others", [IMAGES, OTHER_IMAGES], ids=["equal bytes", "other bytes"])
def test_writer_that_died_at_any_moment_leaves_what_the_next_one_completes(
    tmp_path: Path, format_name: str, others: list[EncodedImage]
) -> None:
    original = plan_of(tmp_path, format_name, rows=4)
    for writes in range(8):
        planned_run = copy_of(original, tmp_path / str(writes))
        store = open_store(planned_run.uri)
        part = first_part(planned_run)
        part_format = format_of(planned_run.plan.job)
        try:
            part_format.pack(part, IMAGES).commit(DyingStore(planned_run, writes))
        except KeyboardInterrupt:
            assert missing_parts(store, [part]) == [part]
        if recover_parts(store, part_format, [part]):
            part_format.pack(part, others).commit(store)
        aggregate(planned_run.uri, failed_share=1)
        assert verify(planned_run.uri).images == 4


def test_second_writer_with_other_bytes_takes_what_the_first_one_wrote(
    tmp_path: Path, format_name: str
) -> None:
    planned_run = plan_of(tmp_path, format_name)
    commit(planned_run, IMAGES)
    before = objects_of(planned_run)
    commit(planned_run, OTHER_IMAGES)
    remove_index(planned_run)
    commit(planned_run, OTHER_IMAGES)
    after = objects_of(planned_run)
    # The first one failed at this image; a file that the second one has of it is in no index.
    unused = {"images/00000/0000-00001.png"} if format_name == "files" else set()
    assert after.keys() - before.keys() == unused
    assert after | before == after


BEST = {
    "scores": {"seeds": {"kind": "own", "entry": "tests.scorers:SeedScore"}},
    "keep": "best 1 of 2 by seeds",
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("order", [1, -1], ids=["the first goes on", "the second goes on"])
def test_two_writers_that_choose_different_candidates_leave_one_winner(
    tmp_path: Path, format_name: str, order: int
) -> None:
    original = plan_of(tmp_path, format_name, rows=1, **BEST)
    first, second = choices()[::order]
    for writes in range(5):
        planned_run = copy_of(original, tmp_path / str(writes))
        commit_and_die(planned_run, first, writes)
        complete(planned_run, second)


def test_writers_that_choose_and_die_leave_sidecars_with_one_winner(tmp_path: Path) -> None:
    original = plan_of(tmp_path, "files", rows=1, **BEST)
    first, second = choices()
    for writes in range(3, 8):
        planned_run = copy_of(original, tmp_path / str(writes))
        commit_and_die(planned_run, first, 2)
        commit_and_die(planned_run, second, writes)
        complete(planned_run, first)


def choices() -> tuple[list[EncodedImage], list[EncodedImage]]:
    """Two candidates of a prompt, of which one or the other has won."""
    winner = [replace(encoded(place), candidate_rank=1) for place in range(2)]
    loser = [replace(not_ok(place, OUTSCORED_STATUS), candidate_rank=2) for place in range(2)]
    return [winner[0], loser[1]], [loser[0], winner[1]]


def commit_and_die(planned_run: PlanResult, images: list[EncodedImage], writes: int) -> None:
    """Write so many objects of a part, at most."""
    packed = format_of(planned_run.plan.job).pack(first_part(planned_run), images)
    with suppress(KeyboardInterrupt):
        packed.commit(DyingStore(planned_run, writes))


def complete(planned_run: PlanResult, images: list[EncodedImage]) -> None:
    """Finish a run with a part of two candidates, which has to have one winner."""
    store = open_store(planned_run.uri)
    part = first_part(planned_run)
    part_format = format_of(planned_run.plan.job)
    if recover_parts(store, part_format, missing_parts(store, [part])):
        part_format.pack(part, images).commit(store)
    summary = aggregate(planned_run.uri)
    assert (summary.ok, summary.outscored) == (1, 1)
    assert verify(planned_run.uri).ok == 1


def test_writer_that_chooses_another_candidate_brings_no_forgotten_image_back(
    tmp_path: Path,
) -> None:
    planned_run = plan_of(tmp_path, "files", rows=1, **BEST)
    store = open_store(planned_run.uri)
    part = first_part(planned_run)
    part_format = format_of(planned_run.plan.job)
    first, second = choices()
    with pytest.raises(KeyboardInterrupt):
        part_format.pack(part, first).commit(DyingStore(planned_run, 3))
    part_format.empty(store, part, part.rows["image_id"].to_pylist()[1:])
    assert part_format.pack(part, second).commit(store)
    index = pq.read_table(io.BytesIO(store.read(part.key)))
    assert index["status"].to_pylist() == [OUTSCORED_STATUS, FORGOTTEN_STATUS]


def test_part_that_lacks_only_its_index_is_committed_without_drawing(
    tmp_path: Path, format_name: str
) -> None:
    planned_run = plan_of(tmp_path, format_name)
    commit(planned_run, IMAGES)
    before = objects_of(planned_run)
    part = first_part(planned_run)
    remove_index(planned_run)
    store = open_store(planned_run.uri)
    assert recover_parts(store, format_of(planned_run.plan.job), [part]) == []
    assert objects_of(planned_run) == before


@pytest.mark.quick_cases(1)
def test_part_that_lacks_only_its_index_is_accounted_for_and_not_retried(
    tmp_path: Path, format_name: str
) -> None:
    planned_run = plan_of(tmp_path, format_name)
    fill(planned_run)
    remove_index(planned_run)
    assert aggregate(planned_run.uri).ok == 8
    assert plan_next_round(open_store(planned_run.uri), planned_run.plan) is None
    assert verify(planned_run.uri).ok == 8


def test_file_that_was_removed_with_its_index_is_drawn_again(tmp_path: Path) -> None:
    planned_run = plan_of(tmp_path, "files")
    commit(planned_run, IMAGES)
    before = objects_of(planned_run)
    part = first_part(planned_run)
    image = Path(planned_run.uri, "images/00000/0000-00002.png")
    remove_index(planned_run)
    image.unlink()
    store = open_store(planned_run.uri)
    assert recover_parts(store, format_of(planned_run.plan.job), [part]) == [part]
    refusal = r"0000-00002.json: describes another image than the file beside it. Delete both"
    with pytest.raises(BadInput, match=refusal):
        commit(planned_run, [*IMAGES[:2], OTHER_IMAGES[2], IMAGES[3]])
    image.unlink()
    commit(planned_run, IMAGES)
    assert objects_of(planned_run) == before


def damage_tar(folder: Path) -> None:
    tar = folder / "images/00000-0000.tar"
    tar.write_bytes(tar.read_bytes()[:700])


def damage_file(folder: Path) -> None:
    (folder / "images/00000/0000-00000.png").write_bytes(b"no picture")
    (folder / "images/00000/0000-00000.json").unlink()


@pytest.mark.parametrize(
    ("format_name", "damage"), [("webdataset", damage_tar), ("files", damage_file)]
)
def test_damaged_object_of_another_attempt_is_refused_and_not_committed(
    tmp_path: Path, format_name: str, damage: Callable[[Path], None]
) -> None:
    planned_run = plan_of(tmp_path, format_name)
    commit(planned_run, IMAGES)
    remove_index(planned_run)
    damage(Path(planned_run.uri))
    with pytest.raises(BadInput, match=r"images/00000.*is damaged \(.*Restore or delete it"):
        commit(planned_run, IMAGES)
    assert not Path(planned_run.uri, first_part(planned_run).key).exists()


def test_tar_whose_index_is_a_link_to_itself_is_refused_in_a_sentence(tmp_path: Path) -> None:
    planned_run = plan_of(tmp_path, "webdataset")
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        link = tarfile.TarInfo(INDEX_MEMBER)
        link.type = tarfile.SYMTYPE
        link.linkname = INDEX_MEMBER
        archive.addfile(link)
    store = open_store(planned_run.uri)
    store.create("images/00000-0000.tar", (tmp_path / "link.tar").read_bytes())
    with pytest.raises(BadInput, match=r"00000-0000\.tar: is damaged \(.*Restore or delete it"):
        commit(planned_run, IMAGES)


def test_tar_whose_image_is_not_what_its_index_says_is_not_committed(tmp_path: Path) -> None:
    planned_run = plan_of(tmp_path, "webdataset")
    commit(planned_run, IMAGES)
    remove_index(planned_run)
    flip_bit(Path(planned_run.uri, "images/00000-0000.tar"), 600)
    refusal = r"00000-0000.tar: image \w+ has other bytes than were written\. Delete the tar"
    with pytest.raises(BadInput, match=refusal):
        commit(planned_run, IMAGES)


def test_objects_of_another_plan_are_refused(tmp_path: Path, format_name: str) -> None:
    one = plan_of(tmp_path / "one", format_name)
    other = plan_of(tmp_path / "two", format_name, defaults={"steps": 3, "seed": 7})
    commit(one, IMAGES)
    remove_index(one)
    for key in ("plan.json", shard_key(0)):
        Path(one.uri, key).write_bytes(Path(other.uri, key).read_bytes())
    mixed = replace(one, plan=load_plan(open_store(one.uri)))
    with pytest.raises(BadInput, match=r"another plan|other images than were planned"):
        commit(mixed, IMAGES)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("format_name", "key", "position"),
    [
        ("webdataset", "images/00000-0000.tar", 600),
        ("webdataset", "images/00000-0000.tar", -1),
        ("webdataset", "index/00000-0000.parquet", -1),
        ("files", "images/00000/0000-00002.png", 60),
        ("files", "images/00000/0000-00001.json", 20),
        ("files", "index/00000-0000.parquet", -1),
        ("files", "images/00000/metadata.parquet", -1),
    ],
)
def test_verify_finds_what_is_damaged_or_missing(
    tmp_path: Path, format_name: str, key: str, position: int
) -> None:
    planned_run = plan_of(tmp_path, format_name, rows=4)
    fill(planned_run, {1: not_ok(1)})
    aggregate(planned_run.uri, failed_share=1)
    path = Path(planned_run.uri, key)
    flip_bit(path, position)
    with pytest.raises(Incomplete, match=key):
        verify(planned_run.uri)
    path.unlink()
    with pytest.raises(Incomplete, match=f"{key}: no such file"):
        verify(planned_run.uri)


def test_tar_holds_three_files_an_image_of_no_time_and_no_owner(tmp_path: Path) -> None:
    planned_run = plan_of(tmp_path, "webdataset")
    commit(planned_run, IMAGES)
    part = first_part(planned_run)
    image_ids = part.rows["image_id"].to_pylist()
    with tarfile.open(Path(planned_run.uri, tar_key(part.key)), "r:") as tar:
        members = tar.getmembers()
        sidecar = json.load(tar.extractfile(members[1]) or io.BytesIO())
    assert [member.name for member in members] == [
        *(f"{image_ids[index]}.{end}" for index in (0, 2, 3) for end in ("png", "json", "txt")),
        INDEX_MEMBER,
    ]
    for member in members:
        assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
        assert (member.uname, member.gname, member.mode) == ("", "", 0o644)
    assert sidecar["prompt"] == PROMPTS[0]["prompt"]
    assert (sidecar["status"], sidecar["sha256"]) == ("ok", IMAGES[0].sha256)


def test_image_that_failed_has_a_sidecar_with_its_error(tmp_path: Path) -> None:
    planned_run = plan_of(tmp_path, "files")
    commit(planned_run, IMAGES)
    folder = Path(planned_run.uri, "images/00000")
    assert not (folder / "0000-00001.png").exists()
    sidecar = json.loads((folder / "0000-00001.json").read_text())
    assert (sidecar["status"], sidecar["error"]) == ("failed", "RuntimeError: a fault")


def test_table_of_a_folder_omits_what_readers_would_open_as_a_file() -> None:
    names = (*IMAGE_ROW_SCHEMA.names, *OUTCOME_SCHEMA.names, *NEAR_DUPLICATE_SCHEMA.names)
    image = {
        **dict.fromkeys(names),
        "status": "ok",
        "part": "images/00000/0000-00000.png",
        "byte_offset": 0,
        "tag": "a",
        "x_file_name": "/etc/passwd",
        "nested": {"file_name": "/etc/passwd"},
    }
    manifest = pa.Table.from_pylist([image, {**image, "status": "failed"}])
    [(key, table)] = FilesFormat(Png()).metadata_tables(manifest)
    assert key == "images/00000/metadata.parquet"
    [row] = table.to_pylist()
    assert (row["file_name"], row["tag"]) == ("0000-00000.png", "a")
    assert not {"x_file_name", "nested"} & row.keys()
