from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runs import tables
from imagekiln.steps.runs.tables import DUPLICATE_SCHEMA, REJECTED_SCHEMA, write_parquet
from tests.mounts import small_disk
from tests.texts import chance

ROWS = pa.table({"row": range(1000), "image_index": [0] * 1000, "image_id": [f"{n:032x}" for n in range(1000)],
                 "first_row": [n // 2 for n in range(1000)]}, schema=DUPLICATE_SCHEMA)  # fmt: skip


@pytest.mark.parametrize("most", [1, 7, 64, 100, 1000])
def test_same_rows_give_the_same_bytes_in_whatever_batches_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP_ROWS", 64)
    write_parquet(tmp_path / "whole", DUPLICATE_SCHEMA, iter(ROWS.to_batches()))
    write_parquet(tmp_path / "cut", DUPLICATE_SCHEMA, iter(ROWS.to_batches(max_chunksize=most)))
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
    assert pq.read_table(tmp_path / "cut").equals(ROWS)
    assert pq.read_metadata(tmp_path / "cut").num_row_groups == 16


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
