"""Parts: what they hold, how their bytes are laid out, how they are committed, what is refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.parts import Part, pack_part, part_to_parquet, read_outcomes
from imagekiln.steps.runs.tables import (
    IMAGE_ROW_SCHEMA,
    ORIGIN_SCHEMA,
    OUTCOME_SCHEMA,
    read_table,
)
from imagekiln.steps.storage.store import Store
from tests.runs import encoded, not_ok

IMAGES = [encoded(0), not_ok(1), encoded(2), encoded(3)]
KEY = "images/00000-0000.parquet"


def commit(store: Store, rows: pa.Table, images: Sequence[EncodedImage] = IMAGES) -> bool:
    return pack_part(Part(KEY, rows), images).commit(store)


def test_a_part_holds_the_plan_s_columns_the_outcome_and_the_image(rows: pa.Table) -> None:
    content = part_to_parquet(rows, IMAGES)
    assert part_to_parquet(rows, IMAGES[::-1]) == content
    table = pq.read_table(pa.BufferReader(content))
    assert table.column_names == [
        "image",
        *IMAGE_ROW_SCHEMA.names,
        "tag",
        *ORIGIN_SCHEMA.names,
        *OUTCOME_SCHEMA.names,
    ]
    assert table.select(rows.column_names).equals(rows.take([0, 2, 3]))
    assert table["status"].to_pylist() == ["ok"] * 3


def test_what_has_no_image_is_no_row_and_keeps_its_outcome(rows: pa.Table, store: Store) -> None:
    lost = replace(not_ok(1, "outscored"), candidate_rank=2, scores={"clip": 0.5})
    lost_twice = replace(lost, index_in_part=3, scores={"clip": None})
    images = [encoded(0), lost, encoded(2), lost_twice]
    added = [pa.field("clip", pa.float32()), pa.field("candidate_rank", pa.int64())]
    store.create(KEY, part_to_parquet(rows, images, added))
    assert pq.read_metadata(store.uri_of(KEY)).num_rows == 2
    outcomes = read_outcomes(store, KEY, ["image_id", "status", "sha256"], added).table
    assert outcomes["image_id"].equals(rows["image_id"])
    assert outcomes["status"].to_pylist() == ["ok", "outscored", "ok", "outscored"]
    assert outcomes["sha256"].to_pylist() == [image.sha256 for image in images]
    assert outcomes["clip"].to_pylist() == [None, 0.5, None, None]
    assert outcomes["candidate_rank"].to_pylist() == [None, 2, None, 2]


def test_offsets_point_at_the_files_themselves(rows: pa.Table, store: Store) -> None:
    commit(store, rows)
    outcomes = read_outcomes(store, KEY, ["byte_size", "sha256"])
    offsets = outcomes.offsets.to_pylist()
    sizes = outcomes.table["byte_size"].to_pylist()
    content = store.read(KEY)
    for image, offset, size in zip(IMAGES, offsets, sizes, strict=True):
        stored = None if offset is None else content[offset : offset + size]
        assert stored == image.content


def test_images_are_stored_as_they_are_and_the_rest_compressed(rows: pa.Table) -> None:
    row_group = pq.read_metadata(pa.BufferReader(part_to_parquet(rows, IMAGES))).row_group(0)
    chunks = [row_group.column(number) for number in range(row_group.num_columns)]
    columns = {chunk.path_in_schema: chunk for chunk in chunks}
    assert columns["image.bytes"].compression == "UNCOMPRESSED"
    assert not columns["image.bytes"].has_dictionary_page
    assert not columns["image.bytes"].is_stats_set
    assert columns["prompt"].compression == "ZSTD"


def test_a_flipped_bit_in_any_column_is_found_by_its_page_s_checksum(
    rows: pa.Table, store: Store
) -> None:
    content = part_to_parquet(rows, IMAGES)
    row_group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    for number in range(row_group.num_columns):
        column = row_group.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        flipped = bytearray(content)
        flipped[start + column.total_compressed_size - 1] ^= 1
        store.replace("flipped", bytes(flipped))
        with pytest.raises(BadInput, match="is damaged"):
            read_table(store, "flipped")


def test_the_first_writer_wins_and_a_part_of_another_plan_is_refused(
    planned_rows: list[pa.Table], store: Store
) -> None:
    rows, other = planned_rows
    assert commit(store, rows)
    first = store.read(KEY)
    assert not commit(store, rows, [not_ok(index) for index in range(4)])
    assert store.read(KEY) == first
    with pytest.raises(
        BadInput,
        match=r"00000-0000.parquet: holds the images of another plan. Choose another run_id",
    ):
        commit(store, other)


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda content: content[:-1],
        lambda _: b"no Parquet at all" * 100,
    ],
    ids=["empty", "a byte short", "something else"],
)
def test_a_part_that_is_not_whole_is_called_damaged(
    damage: Callable[[bytes], bytes], rows: pa.Table, store: Store
) -> None:
    store.replace(KEY, damage(part_to_parquet(rows, IMAGES)))
    with pytest.raises(
        BadInput, match=r"00000-0000.parquet: is damaged \(.*\). Restore or delete it"
    ):
        read_outcomes(store, KEY, ["image_id"])
