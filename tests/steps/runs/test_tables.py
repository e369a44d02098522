"""Parquet that is written as a stream and read back from storage."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.runs.tables import (
    DUPLICATE_SCHEMA,
    REJECTED_SCHEMA,
    count_rows,
    read_columns,
    to_parquet,
    write_parquet,
)
from imagekiln.steps.storage.store import Store
from tests.mounts import small_disk
from tests.texts import chance

ROWS = pa.table(
    {
        "input_row": range(1000),
        "image_index": [0] * 1000,
        "image_id": [f"{number:032x}" for number in range(1000)],
        "first_row": [number // 2 for number in range(1000)],
    },
    schema=DUPLICATE_SCHEMA,
)


@pytest.mark.parametrize("batch_rows", [1, 7, 64, 100, 1000])
def test_same_rows_give_the_same_bytes_in_whatever_batches_they_come(
    tmp_path: Path, batch_rows: int
) -> None:
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    batches = ROWS.to_batches(max_chunksize=batch_rows)
    write_parquet(whole, DUPLICATE_SCHEMA, iter(ROWS.to_batches()), row_group_rows=64)
    write_parquet(cut, DUPLICATE_SCHEMA, iter(batches), row_group_rows=64)
    assert cut.read_bytes() == whole.read_bytes()
    assert pq.read_table(cut).equals(ROWS)
    assert pq.read_metadata(cut).num_row_groups == 16


def test_no_rows_make_a_table_all_the_same(tmp_path: Path) -> None:
    write_parquet(tmp_path / "none", REJECTED_SCHEMA, iter([]))
    assert pq.read_table(tmp_path / "none").schema == REJECTED_SCHEMA


def test_full_disk_means_try_again(tmp_path: Path) -> None:
    noise = chance(3)
    batches = (
        pa.RecordBatch.from_pydict({"image_id": [noise.randbytes(16).hex() for _ in range(20_000)]})
        for _ in range(9)
    )
    schema = pa.schema([pa.field("image_id", pa.string())])
    with (
        small_disk(tmp_path / "disk", kibibytes=64) as disk,
        pytest.raises(TryAgain, match="the disk is full"),
    ):
        write_parquet(disk / "full", schema, batches)


def test_columns_come_in_the_order_that_was_asked_for(store: Store) -> None:
    store.create("table", to_parquet(ROWS))
    columns = ["first_row", "input_row"]
    assert read_columns(store, "table", columns).equals(ROWS.select(columns))
    assert count_rows(store, "table") == 1000


def test_missing_tables_and_columns_are_named(store: Store) -> None:
    with pytest.raises(Missing, match="table: no such file"):
        read_columns(store, "table", ["input_row"])
    store.create("table", to_parquet(ROWS))
    with pytest.raises(BadInput, match=r"table: is damaged \(.*absent"):
        read_columns(store, "table", ["input_row", "absent"])


def test_damaged_table_is_never_counted(store: Store) -> None:
    content = bytearray(to_parquet(ROWS))
    content[100] ^= 1
    store.create("table", bytes(content))
    with pytest.raises(BadInput, match="table: is damaged"):
        count_rows(store, "table")
