"""Scratch data: SQL tables and Arrow files."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.storage.scratch import (
    Database,
    arrow_stream_reader,
    read_arrow_batches,
    write_arrow_file,
)
from tests.mounts import fill, small_disk

BATCHES = [pa.record_batch({"a": [n], "b": [str(n)], "c": [n / 2]}) for n in range(3)]


@pytest.fixture
def arrow_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.arrow"
    write_arrow_file(path, iter(BATCHES))
    return path


def test_batches_read_back_in_the_order_of_writing(arrow_file: Path) -> None:
    assert list(read_arrow_batches(arrow_file)) == BATCHES


def test_a_stream_has_its_columns_in_the_order_of_the_file(arrow_file: Path) -> None:
    table = arrow_stream_reader(arrow_file, ["c", "a"]).read_all()
    assert table.to_pydict() == {"a": [0, 1, 2], "c": [0.0, 0.5, 1.0]}


def test_a_full_disk_means_try_again(tmp_path: Path) -> None:
    def large() -> Iterator[pa.RecordBatch]:
        for _ in range(100):
            yield pa.record_batch({"a": pa.array(range(100_000))})

    with small_disk(tmp_path / "disk", kibibytes=1024) as disk:
        fill(disk, kibibytes_left=64)
        with pytest.raises(TryAgain, match=r"rows\.arrow: the disk is full"):
            write_arrow_file(disk / "rows.arrow", large())


def test_sql_reads_a_stream_and_gives_rows(tmp_path: Path, arrow_file: Path) -> None:
    with closing(Database(tmp_path)) as database:
        database.register("stream", arrow_stream_reader(arrow_file, ["a"]))
        database.execute("CREATE TABLE numbers AS SELECT a FROM stream")
        assert database.fetch_table("SELECT sum(a) AS total FROM numbers").to_pylist() == [
            {"total": 3}
        ]
        rows = pa.Table.from_batches(database.fetch_batches("SELECT a FROM numbers ORDER BY a"))
        assert rows.to_pydict() == {"a": [0, 1, 2]}


def test_a_query_larger_than_memory_and_disk_means_try_again(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", kibibytes=1024) as disk,
        closing(Database(disk)) as database,
        pytest.raises(TryAgain, match=r"ran out of disk or memory .* run the command again\."),
    ):
        database.execute(
            "CREATE TABLE t AS SELECT i, md5(i::text) AS h FROM range(20000000) r(i) ORDER BY h"
        )
