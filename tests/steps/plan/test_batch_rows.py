"""Rows are read in batches that fit in memory, however small the file that they come from."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.plan.batch_rows import BATCH_ROWS, choose_batch_rows, iter_batches
from tests.jobs import write

MIB = 2**20


def _batch_rows(folder: Path, columns: dict[str, object], **options: object) -> int:
    path = Path(write(folder / "p.parquet", columns, **options))
    assert path.stat().st_size < 3 * MIB
    with pq.ParquetFile(path) as parquet:
        return min(choose_batch_rows(path, parquet, columns))


def _repeated(value: object, kind: pa.DataType, rows: int = 60_000) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value], kind))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_rows_that_repeat_a_long_value_come_in_short_batches(
    tmp_path: Path, kind: pa.DataType
) -> None:
    long = _repeated("x" * MIB, kind)
    assert _batch_rows(tmp_path, {"prompt": long, "n": range(60_000)}, store_schema=False) == 256


def test_images_with_their_paths_that_repeat_come_in_short_batches(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    fields = [_repeated(bytes(MIB), pa.binary()), _repeated("a.png", pa.string())]
    image = pa.StructArray.from_arrays(fields, ["bytes", "path"])
    write(path, {"prompt": ["a"] * 60_000, "source_image": image}, store_schema=False)
    with pq.ParquetFile(path) as parquet:
        assert choose_batch_rows(path, parquet, ["prompt", "source_image"]) == [256]
        assert choose_batch_rows(path, parquet, ["prompt"]) == [BATCH_ROWS]


def test_rows_of_ordinary_length_come_in_whole_batches(tmp_path: Path) -> None:
    prompts = [f"a red circle, number {number % 1000}" for number in range(100_000)]
    assert _batch_rows(tmp_path, {"prompt": prompts, "seed": range(100_000)}) == BATCH_ROWS


def test_long_rows_among_short_ones_come_in_short_batches(tmp_path: Path) -> None:
    prompts = ["a"] * 500_000 + ["x" * MIB] * 50
    rows = _batch_rows(tmp_path, {"prompt": prompts}, row_group_size=100_000, compression="zstd")
    assert rows <= 256


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("long_rows", [1, 6])
def test_only_the_row_group_with_long_values_is_read_in_short_batches(
    tmp_path: Path, long_rows: int
) -> None:
    prompts = [*map(str, range(200_000)), *["x" * 17 * MIB] * long_rows, *map(str, range(200_000))]
    path = Path(write(tmp_path / "p.parquet", {"prompt": prompts}, row_group_size=100_000))
    with pq.ParquetFile(path) as parquet:
        batches = [*iter_batches(path, parquet, ["prompt"])]
    sizes = [batch.nbytes for batch in batches]
    assert max(sizes) < 300 * MIB
    assert len(batches) < 20 + long_rows, "short rows beside long ones come together"
    assert [prompt for batch in batches for prompt in batch["prompt"].to_pylist()] == prompts


def _batches(path: Path) -> list[pa.RecordBatch]:
    with pq.ParquetFile(path) as parquet:
        return list(iter_batches(path, parquet, ["prompt"]))
