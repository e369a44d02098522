"""Formats whose images lie beside the commit: parts are whole or missing, whoever else writes them.

`verify` finds whatever is wrong in them. `test_parquet_format.py` has the format with one object.
"""

import io
import json
import tarfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import get_args

import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.card import data_file_patterns
from imagekiln.steps.aggregate.report.page import FORMAT_PHRASES
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import Png
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.formats import PART_FORMATS, format_of, recover_parts
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import (
    IMAGE_KEY_PATTERN,
    IMAGES_PREFIX,
    PART_IMAGES_KEY_PATTERN,
    manifest_key,
    tar_key,
)
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runs.tables import (
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


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("format_name", "key", "position"),
    [
        ("webdataset", "images/00000-0000.tar", 600),
        ("files", "images/00000/0000-00002.png", 60),
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
