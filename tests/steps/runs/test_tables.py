"""Parquet that is written as a stream and read back from storage."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.tables import (
    DUPLICATE_SCHEMA,
    IMAGE_FIELD,
    IMAGE_ROW_SCHEMA,
    ORIGIN_SCHEMA,
    OUTCOME_SCHEMA,
    REJECTED_SCHEMA,
    read_column,
    to_parquet,
    write_parquet,
)
from imagekiln.steps.storage.store import Store

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


def test_missing_tables_and_columns_are_named(store: Store) -> None:
    with pytest.raises(Missing, match="table: no such file"):
        read_column(store, "table", "input_row")
    store.create("table", to_parquet(ROWS))
    with pytest.raises(BadInput, match=r"table: is damaged \(.*absent"):
        read_column(store, "table", "absent")


# PostgreSQL's "reserved" and "reserved (can be function or type)", of its documentation.
POSTGRESQL_RESERVED = """
all analyse analyze and any array as asc asymmetric authorization binary both case cast check
collate collation column concurrently constraint create cross current_catalog current_date
current_role current_schema current_time current_timestamp current_user default deferrable desc
distinct do else end except false fetch for foreign freeze from full grant group having ilike in
initially inner intersect into is isnull join lateral leading left like limit localtime
localtimestamp natural not notnull null offset on only or order outer overlaps placing primary
references returning right select session_user similar some symmetric system_user table
tablesample then to trailing true union unique user using variadic verbose when where window with
row rows values
"""


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
    assert set(POSTGRESQL_RESERVED.split()).isdisjoint(schema.names)
    rows = duckdb.from_arrow(schema.empty_table())
    selected = rows.project(", ".join(schema.names))
    assert selected.columns == schema.names


def test_a_table_without_rows_has_no_row_group(tmp_path: Path) -> None:
    empty = REJECTED_SCHEMA.empty_table()
    write_parquet(tmp_path / "empty.parquet", REJECTED_SCHEMA, iter(empty.to_batches()))
    for content in ((tmp_path / "empty.parquet").read_bytes(), to_parquet(empty)):
        file = pq.ParquetFile(pa.BufferReader(content))
        assert (file.num_row_groups, file.schema_arrow) == (0, REJECTED_SCHEMA)
