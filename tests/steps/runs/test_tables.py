"""Parquet that is written as a stream and read back from storage."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.runs.tables import (
    DUPLICATE_SCHEMA,
    IMAGE_FIELD,
    IMAGE_ROW_SCHEMA,
    ORIGIN_SCHEMA,
    OUTCOME_SCHEMA,
    REJECTED_SCHEMA,
    to_parquet,
    write_parquet,
)

ROWS = pa.table(
    {
        "input_row": range(1000),
        "image_index": [0] * 1000,
        "image_id": [f"{number:032x}" for number in range(1000)],
        "first_row": [number // 2 for number in range(1000)],
    },
    schema=DUPLICATE_SCHEMA,
)


@pytest.mark.parametrize("batch_rows", [1, 64, 1000])
def test_same_rows_give_the_same_bytes_in_whatever_batches_they_come(
    tmp_path: Path, batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagekiln.steps.runs.tables.ROW_GROUP_ROWS", 64)
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    batches = ROWS.to_batches(max_chunksize=batch_rows)
    write_parquet(whole, DUPLICATE_SCHEMA, iter(ROWS.to_batches()))
    write_parquet(cut, DUPLICATE_SCHEMA, iter(batches))
    assert cut.read_bytes() == whole.read_bytes()
    assert pq.read_table(cut).equals(ROWS)
    assert pq.read_metadata(cut).num_row_groups == 16


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([IMAGE_FIELD, *IMAGE_ROW_SCHEMA, *ORIGIN_SCHEMA, *OUTCOME_SCHEMA]),
        REJECTED_SCHEMA,
        DUPLICATE_SCHEMA,
    ],
    ids=["part", "rejected", "duplicates"],
)
def test_columns_need_no_quotes_in_sql(schema: pa.Schema) -> None:
    reserved = duckdb.execute(
        "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    ).fetchall()
    assert {name for (name,) in reserved}.isdisjoint(schema.names)
    rows = duckdb.from_arrow(schema.empty_table())
    selected = rows.project(", ".join(schema.names))
    assert selected.columns == schema.names


def test_a_table_without_rows_has_no_row_group(tmp_path: Path) -> None:
    empty = REJECTED_SCHEMA.empty_table()
    write_parquet(tmp_path / "empty.parquet", REJECTED_SCHEMA, iter(empty.to_batches()))
    for content in ((tmp_path / "empty.parquet").read_bytes(), to_parquet(empty)):
        file = pq.ParquetFile(pa.BufferReader(content))
        assert (file.num_row_groups, file.schema_arrow) == (0, REJECTED_SCHEMA)
