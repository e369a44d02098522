"""The format `parquet`: what a part holds, and how its bytes are laid out."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.part_file import part_to_parquet
from imagekiln.steps.runs.parts import commit_part, outcome_table, read_outcomes
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


def test_images_may_come_in_any_order(rows: pa.Table) -> None:
    assert part_to_parquet(rows, IMAGES[::-1]) == part_to_parquet(rows, IMAGES)


def test_a_part_holds_the_plan_s_columns_the_outcome_and_the_image(rows: pa.Table) -> None:
    table = pq.read_table(pa.BufferReader(part_to_parquet(rows, IMAGES)))
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
    lost = replace(not_ok(1, "outscored"), candidate_rank=2, scores={"clip": 0.1})
    lost_twice = replace(lost, index_in_part=3, scores={"clip": None})
    images = [encoded(0), lost, encoded(2), lost_twice]
    added = [pa.field("clip", pa.float32()), pa.field("candidate_rank", pa.int64())]
    store.create(KEY, part_to_parquet(rows, images, added))
    assert pq.read_metadata(store.uri_of(KEY)).num_rows == 2
    outcomes = read_outcomes(store, KEY, ["image_id", *OUTCOME_SCHEMA.names], added).table
    assert outcomes["image_id"].equals(rows["image_id"])
    assert outcomes.drop_columns(["image_id"]).equals(outcome_table(images, added))


def test_offsets_point_at_the_files_themselves(rows: pa.Table, store: Store) -> None:
    commit_part(store, KEY, rows, part_to_parquet(rows, IMAGES))
    outcomes = read_outcomes(store, KEY, ["byte_size", "sha256"])
    offsets = outcomes.offsets.to_pylist()
    sizes = outcomes.table["byte_size"].to_pylist()
    with store.open(KEY) as file:
        for image, offset, size in zip(IMAGES, offsets, sizes, strict=True):
            assert (image.content is None) == (offset is None)
            if offset is not None:
                file.seek(offset)
                assert file.read(size) == image.content


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
