"""Every format: parts are there whole or not at all, whoever else writes them, and verify finds what is wrong."""

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.local import run
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.files_format import imagefolder_metadata
from imagekiln.steps.runs.formats import format_of, recover_parts
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import manifest_key, shard_key, tar_key
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
from tests.runs import PROMPTS, encoded, fill, job, not_ok, planned, write_prompts

BYTES_FIRST = ["webdataset", "files"]
IMAGES = [encoded(0), not_ok(1), encoded(2), encoded(3)]
OTHERS = [replace(encoded(place + 9), index_in_part=place) for place in range(4)]


@pytest.fixture(params=BYTES_FIRST)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plan_of(folder: Path, layout: str, rows: int = 8, **settings: object) -> PlanResult:
    return planned(folder, str(folder / "out"), PROMPTS[:rows], format=layout, **settings)


def first_part(there: PlanResult) -> Part:
    return read_shard(open_store(there.uri), there.plan, 0)[0]


def commit(there: PlanResult, images: list[EncodedImage]) -> None:
    format_of(there.plan.job).pack(first_part(there), images).commit(open_store(there.uri))


def images_of(there: PlanResult) -> dict[str, bytes]:
    """All objects of the images and their indexes."""
    found = files_of(Path(there.uri))
    return {key: content for key, content in found.items() if key.startswith(("images/", "index/"))}


class Dying(LocalStore):
    """A run's folder that fails for good after so many objects were written, as if the process were killed."""

    def __init__(self, there: PlanResult, writes: int) -> None:
        super().__init__(Path(there.uri))
        self.left, self.written = writes, list[str]()

    def create(self, key: str, data: bytes) -> bool:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        self.written.append(key)
        return super().create(key, data)


@pytest.mark.parametrize("layout", BYTES_FIRST)
def test_whole_job_in_each_format_makes_the_images_that_parquet_has(
    store_uri: str, tmp_path: Path, layout: str
) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet", PROMPTS[:6])
    same = {"batch": {"images": 2}, "part": {"images": 4}}
    wanted = run(job(prompts, str(tmp_path / "wanted"), **same))
    done = run(job(prompts, store_uri, format=layout, **same))
    assert verify(done.uri).ok == done.summary.ok == 6
    columns = ["image_id", "prompt", "seed", "status", "size", "sha256", "pixels_sha256"]
    found, expected = (
        read_table(open_store(uri), manifest_key(0)) for uri in (done.uri, wanted.uri)
    )
    assert found.select(columns).equals(expected.select(columns))
    assert run(job(prompts, store_uri, format=layout, **same)).before


def test_manifest_names_an_object_and_the_range_of_it_that_is_the_image(
    tmp_path: Path, layout: str
) -> None:
    there = plan_of(tmp_path, layout)
    fill(there, {1: not_ok(1)})
    aggregate(there.uri, failed_share=1)
    for place, row in enumerate(read_table(open_store(there.uri), manifest_key(0)).to_pylist()):
        content = (Path(there.uri) / row["part"]).read_bytes()
        if place == 1:
            assert (row["status"], row["offset"], row["part"]) == (
                "failed",
                None,
                "index/00000-0000.parquet",
            )
        else:
            assert (
                content[row["offset"] : row["offset"] + row["size"]] == encoded(place % 4).content
            )


def test_same_images_give_the_same_objects(tmp_path: Path, layout: str) -> None:
    one, other = plan_of(tmp_path / "one", layout), plan_of(tmp_path / "other", layout)
    commit(one, IMAGES)
    commit(other, IMAGES[::-1])
    assert images_of(one) == images_of(other)


def test_commit_comes_last(tmp_path: Path, layout: str) -> None:
    there = plan_of(tmp_path, layout)
    store = Dying(there, 100)
    format_of(there.plan.job).pack(first_part(there), IMAGES).commit(store)
    assert store.written[-1] == "index/00000-0000.parquet"
    ends = [Path(key).suffix for key in store.written]
    assert ends == (
        [".tar", ".parquet"]
        if layout == "webdataset"
        else [".png"] * 3 + [".json"] * 4 + [".parquet"]
    )


@pytest.mark.parametrize("others", [IMAGES, OTHERS], ids=["equal bytes", "other bytes"])
def test_writer_that_died_at_any_moment_leaves_what_the_next_one_completes(
    tmp_path: Path, layout: str, others: list[EncodedImage]
) -> None:
    for writes in range(8):
        there = plan_of(tmp_path / str(writes), layout, rows=4)
        store = Dying(there, writes)
        format_, part = format_of(there.plan.job), first_part(there)
        try:
            format_.pack(part, IMAGES).commit(store)
        except KeyboardInterrupt:
            assert missing_parts(open_store(there.uri), [part]) == [part]
        if recover_parts(open_store(there.uri), format_, [part]):
            format_.pack(part, others).commit(open_store(there.uri))
        aggregate(there.uri, failed_share=1)
        assert verify(there.uri).images == 4


def test_second_writer_with_other_bytes_takes_what_the_first_one_wrote(
    tmp_path: Path, layout: str
) -> None:
    there = plan_of(tmp_path, layout)
    commit(there, IMAGES)
    before = images_of(there)
    commit(there, OTHERS)
    Path(there.uri, first_part(there).key).unlink()
    commit(there, OTHERS)
    found = images_of(there)
    # The first one failed at this image; a file that the second one has of it is in no index.
    unused = {"images/00000/0000-00001.png"} if layout == "files" else set()
    assert found.keys() - before.keys() == unused
    assert found | before == found


def test_part_that_lacks_only_its_index_is_committed_without_drawing(
    tmp_path: Path, layout: str
) -> None:
    there = plan_of(tmp_path, layout)
    commit(there, IMAGES)
    before, part = images_of(there), first_part(there)
    Path(there.uri, part.key).unlink()
    assert recover_parts(open_store(there.uri), format_of(there.plan.job), [part]) == []
    assert images_of(there) == before


def test_part_that_lacks_only_its_index_is_accounted_for_and_not_retried(
    tmp_path: Path, layout: str
) -> None:
    there = plan_of(tmp_path, layout)
    fill(there)
    Path(there.uri, first_part(there).key).unlink()
    assert aggregate(there.uri).ok == 8
    assert plan_next_round(open_store(there.uri), there.plan) is None
    assert verify(there.uri).ok == 8


def test_file_that_was_removed_with_its_index_is_drawn_again(tmp_path: Path) -> None:
    there = plan_of(tmp_path, "files")
    commit(there, IMAGES)
    before, part = images_of(there), first_part(there)
    for key in (part.key, "images/00000/0000-00002.png"):
        Path(there.uri, key).unlink()
    assert recover_parts(open_store(there.uri), format_of(there.plan.job), [part]) == [part]
    with pytest.raises(
        BadInput, match=r"0000-00002.json: tells of another image than lies beside it. Delete both"
    ):
        commit(there, [*IMAGES[:2], OTHERS[2], IMAGES[3]])
    Path(there.uri, "images/00000/0000-00002.png").unlink()
    commit(there, IMAGES)
    assert images_of(there) == before


def damaged_tar(folder: Path) -> None:
    tar = folder / "images/00000-0000.tar"
    tar.write_bytes(tar.read_bytes()[:700])


def damaged_file(folder: Path) -> None:
    (folder / "images/00000/0000-00000.png").write_bytes(b"no picture")
    (folder / "images/00000/0000-00000.json").unlink()


@pytest.mark.parametrize(
    ("layout", "damage"), [("webdataset", damaged_tar), ("files", damaged_file)]
)
def test_damaged_object_of_another_attempt_is_told_and_not_committed(
    tmp_path: Path, layout: str, damage: Callable[[Path], None]
) -> None:
    there = plan_of(tmp_path, layout)
    commit(there, IMAGES)
    Path(there.uri, first_part(there).key).unlink()
    damage(Path(there.uri))
    with pytest.raises(BadInput, match=r"images/00000.*is damaged \(.*Restore or delete it"):
        commit(there, IMAGES)
    assert not Path(there.uri, first_part(there).key).exists()


def test_tar_whose_image_is_not_what_its_index_says_is_not_committed(tmp_path: Path) -> None:
    there = plan_of(tmp_path, "webdataset")
    commit(there, IMAGES)
    Path(there.uri, first_part(there).key).unlink()
    tar = Path(there.uri, "images/00000-0000.tar")
    tar.write_bytes(_flipped(tar.read_bytes(), 600))
    with pytest.raises(
        BadInput,
        match=r"00000-0000.tar: image \w+ has other bytes than were written\. Delete the tar",
    ):
        commit(there, IMAGES)


def test_objects_of_another_plan_are_refused(tmp_path: Path, layout: str) -> None:
    one, other = (
        plan_of(tmp_path / "one", layout),
        plan_of(tmp_path / "two", layout, defaults={"steps": 3, "seed": 7}),
    )
    commit(one, IMAGES)
    Path(one.uri, first_part(one).key).unlink()
    Path(one.uri, "plan.json").write_bytes(Path(other.uri, "plan.json").read_bytes())
    Path(one.uri, shard_key(0)).write_bytes(Path(other.uri, shard_key(0)).read_bytes())
    there = replace(one, plan=load_plan(open_store(one.uri)))
    with pytest.raises(BadInput, match=r"another plan|other images than were planned"):
        commit(there, IMAGES)


def _flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


WHERE: Mapping[str, list[tuple[str, int]]] = {
    "webdataset": [
        ("images/00000-0000.tar", 600),
        ("images/00000-0000.tar", -1),
        ("index/00000-0000.parquet", -1),
    ],
    "files": [
        ("images/00000/0000-00002.png", 60),
        ("images/00000/0000-00001.json", 20),
        ("index/00000-0000.parquet", -1),
        ("images/00000/metadata.parquet", -1),
    ],
}


@pytest.mark.parametrize(
    ("layout", "key", "place"), [(each, *at) for each, all_ in WHERE.items() for at in all_]
)
def test_verify_finds_what_is_damaged_or_missing(
    tmp_path: Path, layout: str, key: str, place: int
) -> None:
    there = plan_of(tmp_path, layout, rows=4)
    fill(there, {1: not_ok(1)})
    aggregate(there.uri, failed_share=1)
    path = Path(there.uri, key)
    path.write_bytes(_flipped(path.read_bytes(), place))
    with pytest.raises(Incomplete, match=key):
        verify(there.uri)
    path.unlink()
    with pytest.raises(Incomplete, match=f"{key}: no such file"):
        verify(there.uri)


def test_tar_holds_three_files_an_image_of_no_time_and_no_owner(tmp_path: Path) -> None:
    there = plan_of(tmp_path, "webdataset")
    commit(there, IMAGES)
    part = first_part(there)
    ids = [name for place, name in enumerate(part.rows["image_id"].to_pylist()) if place != 1]
    with tarfile.open(Path(there.uri, tar_key(part.key)), "r:") as tar:
        members = tar.getmembers()
        assert [each.name for each in members[:-1]] == [
            f"{name}.{end}" for name in ids for end in ("png", "json", "txt")
        ]
        assert members[-1].name == INDEX_MEMBER
        assert {
            (each.mtime, each.uid, each.gid, each.uname, each.gname, each.mode) for each in members
        } == {(0, 0, 0, "", "", 0o644)}
        told = json.load(tar.extractfile(members[1]) or io.BytesIO())
    assert told["prompt"] == PROMPTS[0]["prompt"]
    assert (told["status"], told["sha256"]) == ("ok", IMAGES[0].sha256)


def test_image_that_failed_has_its_error_beside_where_it_would_be(tmp_path: Path) -> None:
    there = plan_of(tmp_path, "files")
    commit(there, IMAGES)
    folder = Path(there.uri, "images/00000")
    assert not (folder / "0000-00001.png").exists()
    told = json.loads((folder / "0000-00001.json").read_text())
    assert (told["status"], told["error"]) == ("failed", "ValueError: a fault")


def test_listing_of_a_folder_leaves_out_what_readers_would_open_as_a_file() -> None:
    row = dict.fromkeys(
        (*IMAGE_ROW_SCHEMA.names, *OUTCOME_SCHEMA.names, *NEAR_DUPLICATE_SCHEMA.names)
    )
    here = {
        "status": "ok",
        "part": "images/00000/0000-00000.png",
        "offset": 0,
        "tag": "a",
        "x_file_name": "/etc/passwd",
    }
    [(key, listing)] = imagefolder_metadata(
        pa.Table.from_pylist([row | here, row | here | {"status": "failed"}])
    )
    assert key == "images/00000/metadata.parquet"
    assert (listing.num_rows, listing["file_name"][0].as_py(), listing["tag"][0].as_py()) == (
        1,
        "0000-00000.png",
        "a",
    )
    assert "x_file_name" not in listing.column_names
