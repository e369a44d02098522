"""Parts: their bytes, where the images lie in them, and what they refuse."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.parts import (
    check_part,
    commit_part,
    parse_offsets,
    part_to_parquet,
    read_outcomes,
)
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA, OUTCOME_SCHEMA, from_parquet, to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.runs import encoded, not_ok, planned

IMAGES = [encoded(0), not_ok(1), encoded(2), encoded(3)]
KEY = "images/00000-0000.parquet"


@pytest.fixture(scope="module")
def planned_rows(tmp_path_factory: pytest.TempPathFactory) -> list[pa.Table]:
    """The image rows of the parts of a planned shard, and what the input carried along."""
    scratch = tmp_path_factory.mktemp("parts")
    prompts = [
        {"prompt": f"number {place}", "tag": None if place else "first"} for place in range(8)
    ]
    there = planned(scratch, str(scratch / "out"), prompts, carry=["tag"])
    return [part.rows for part in read_shard(open_store(there.uri), there.plan, 0)]


@pytest.fixture
def rows(planned_rows: list[pa.Table]) -> pa.Table:
    return planned_rows[0]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "run"))


def test_the_same_images_give_the_same_bytes(rows: pa.Table) -> None:
    assert part_to_parquet(rows, IMAGES) == part_to_parquet(rows, IMAGES)


def test_images_may_come_in_any_order(rows: pa.Table) -> None:
    assert part_to_parquet(rows, IMAGES[::-1]) == part_to_parquet(rows, IMAGES)


def test_a_part_holds_the_plan_s_columns_the_outcome_and_the_image(rows: pa.Table) -> None:
    table = pq.read_table(pa.BufferReader(part_to_parquet(rows, IMAGES)))
    assert table.column_names == ["image", *IMAGE_ROW_SCHEMA.names, "tag", *OUTCOME_SCHEMA.names]
    assert table.select(rows.column_names).equals(rows)
    assert table["status"].to_pylist() == ["ok", "failed", "ok", "ok"]
    assert table["error"].to_pylist() == [None, "ValueError: a fault", None, None]


def test_an_image_is_a_file_named_by_its_id_and_null_where_there_is_none(rows: pa.Table) -> None:
    table = pq.read_table(pa.BufferReader(part_to_parquet(rows, IMAGES)))
    ids = rows["image_id"].to_pylist()
    wanted = [
        {"bytes": image.content, "path": f"{name}.png"}
        for name, image in zip(ids, IMAGES, strict=True)
    ]
    assert table["image"].to_pylist() == [wanted[0], None, wanted[2], wanted[3]]


def test_offsets_point_at_the_files_themselves(rows: pa.Table, store: Store) -> None:
    commit_part(store, KEY, rows, part_to_parquet(rows, IMAGES))
    found = read_outcomes(store, KEY, ["size", "sha256"])
    with store.open(KEY) as file:
        for image, offset, size in zip(
            IMAGES, found.offsets.to_pylist(), found.table["size"].to_pylist(), strict=True
        ):
            assert (image.content is None) == (offset is None)
            if offset is not None:
                file.seek(offset)
                assert file.read(size) == image.content


def test_equal_images_have_a_place_each(rows: pa.Table) -> None:
    same = [EncodedImage(place, "ok", None, IMAGES[0].content, "a", "b") for place in range(4)]
    offsets = parse_offsets(part_to_parquet(rows, same), "here").to_pylist()
    assert len(set(offsets)) == 4
    assert offsets == sorted(offsets)


def test_a_part_without_any_image_is_a_part(rows: pa.Table, store: Store) -> None:
    commit_part(store, KEY, rows, part_to_parquet(rows, [not_ok(place) for place in range(4)]))
    found = read_outcomes(store, KEY, ["status"])
    assert found.table["status"].to_pylist() == ["failed"] * 4
    assert found.offsets.null_count == 4


def test_hugging_face_datasets_is_told_that_the_column_is_an_image(rows: pa.Table) -> None:
    metadata = pq.read_schema(pa.BufferReader(part_to_parquet(rows, IMAGES))).metadata
    features = json.loads(metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"}


def test_images_are_stored_as_they_are_and_the_rest_compressed(rows: pa.Table) -> None:
    group = pq.read_metadata(pa.BufferReader(part_to_parquet(rows, IMAGES))).row_group(0)
    columns = {
        group.column(place).path_in_schema: group.column(place)
        for place in range(group.num_columns)
    }
    assert columns["image.bytes"].compression == "UNCOMPRESSED"
    assert not columns["image.bytes"].has_dictionary_page
    assert not columns["image.bytes"].is_stats_set
    assert columns["prompt"].compression == "ZSTD"


def test_the_first_writer_wins_where_both_made_the_same_images(
    rows: pa.Table, store: Store
) -> None:
    first, second = (
        part_to_parquet(rows, IMAGES),
        part_to_parquet(rows, [encoded(place + 9) for place in range(4)]),
    )
    assert first != second
    commit_part(store, KEY, rows, first)
    renumbered = part_to_parquet(rows, [not_ok(place) for place in range(4)])
    commit_part(store, KEY, rows, renumbered)
    assert store.read(KEY) == first


def test_a_part_with_the_images_of_another_plan_is_refused(
    planned_rows: list[pa.Table], store: Store
) -> None:
    other = planned_rows[1]
    commit_part(store, KEY, other, part_to_parquet(other, IMAGES))
    with pytest.raises(
        BadInput,
        match=r"00000-0000.parquet: holds the images of another plan. Choose another run_id",
    ):
        commit_part(store, KEY, planned_rows[0], part_to_parquet(planned_rows[0], IMAGES))


def test_a_part_with_too_few_images_is_refused(rows: pa.Table, store: Store) -> None:
    commit_part(store, KEY, rows.slice(0, 3), part_to_parquet(rows.slice(0, 3), IMAGES[:3]))
    with pytest.raises(BadInput, match="holds the images of another plan"):
        check_part(store, KEY, rows)


def test_a_part_that_is_not_there_is_missing(store: Store) -> None:
    with pytest.raises(Missing, match="00000-0000"):
        read_outcomes(store, KEY, ["image_id"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda _: b"no Parquet at all" * 100,
    ],
    ids=["empty", "half", "a byte short", "something else"],
)
def test_what_is_no_whole_part_is_damaged_and_says_so(
    damage: Callable[[bytes], bytes], rows: pa.Table, store: Store
) -> None:
    store.replace(KEY, damage(part_to_parquet(rows, IMAGES)))
    with pytest.raises(
        BadInput, match=r"00000-0000.parquet: is damaged \(.*\). Restore or delete it"
    ):
        read_outcomes(store, KEY, ["image_id"])


def test_parquet_of_others_is_damaged_too(rows: pa.Table, store: Store) -> None:
    store.replace(KEY, to_parquet(rows))
    with pytest.raises(BadInput, match="is damaged"):
        read_outcomes(store, KEY, ["image_id"])
    with pytest.raises(BadInput, match="is damaged"):
        parse_offsets(store.read(KEY), "here")


def test_a_flipped_bit_in_any_column_is_found_by_its_page_s_checksum(rows: pa.Table) -> None:
    content = part_to_parquet(rows, IMAGES)
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    for place in range(group.num_columns):
        column = group.column(place)
        end = (
            column.dictionary_page_offset or column.data_page_offset
        ) + column.total_compressed_size
        flipped = bytearray(content)
        flipped[end - 1] ^= 1
        with pytest.raises(BadInput, match="is damaged"):
            from_parquet(bytes(flipped), "here")


def test_images_keep_their_hashes_in_the_part(rows: pa.Table) -> None:
    table = pq.read_table(pa.BufferReader(part_to_parquet(rows, IMAGES)))
    for image, hashed in zip(table["image"].to_pylist(), table["sha256"].to_pylist(), strict=True):
        assert (image is None) == (hashed is None)
        if image is not None:
            assert hashlib.sha256(image["bytes"]).hexdigest() == hashed
