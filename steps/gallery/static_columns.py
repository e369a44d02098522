"""The columns of a static gallery: what a search, a filter or an order reads, and nothing else."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.gallery.columns import RUN_COLUMN, IndexColumn
from imagekiln.steps.gallery.static_files import COLUMNS_FOLDER, put_json
from imagekiln.steps.runs.sidecar import to_values
from imagekiln.steps.storage.store import Store

CHUNK_ROWS = 65_536
MAX_SAFE_INTEGER = 2**53 - 1  # that JavaScript's numbers hold exactly; larger ones are texts


class StaticColumns:
    """Takes rows in the order of the gallery, and writes each column in files of `chunk_rows`."""

    def __init__(
        self, store: Store, columns: Mapping[str, IndexColumn], chunk_rows: int = CHUNK_ROWS
    ) -> None:
        """Begin without rows. Which run a row is of follows from its number."""
        self.chunk_rows = chunk_rows
        self._store = store
        self._columns = [column for column in columns.values() if column.name != RUN_COLUMN]
        self._pending: list[pa.Table] = []
        self._rows = 0
        self._sums: dict[tuple[str, str], float] = defaultdict(float)
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self.names: dict[str, list[str]] = {column.name: [] for column in self._columns}

    def add(self, run_id: str, manifest: pa.Table) -> None:
        """Take the rows of a manifest; a column that it lacks is null."""
        rows = _select(manifest, self._columns)
        for column in self._columns:
            if column.kind in ("whole", "number"):
                self._add_to_mean((run_id, column.name), rows[column.name])
        self._pending.append(rows)
        self._rows += rows.num_rows
        while self._rows >= self.chunk_rows:
            self._write_chunk()

    def finish(self) -> None:
        """Write the rows that are left."""
        if self._rows:
            self._write_chunk()

    def mean(self, run_id: str, name: str) -> float | None:
        """The mean of a column of numbers in a run; None where it has no values."""
        key = (run_id, name)
        count = self._counts.get(key)
        if not count:
            return None
        return self._sums[key] / count

    def _add_to_mean(self, key: tuple[str, str], column: pa.ChunkedArray) -> None:
        values = column.cast(pa.float64(), safe=False)
        total = pc.sum(values, min_count=0)
        count = pc.count(values)
        self._sums[key] += total.as_py()
        self._counts[key] += count.as_py()

    def _write_chunk(self) -> None:
        rows = pa.concat_tables(self._pending, promote_options="permissive")
        chunk = rows.slice(0, self.chunk_rows)
        rest = rows.slice(self.chunk_rows)
        self._pending = [rest] if rest.num_rows else []
        self._rows = rest.num_rows
        for column in self._columns:
            values = _to_values(chunk[column.name])
            name = put_json(self._store, COLUMNS_FOLDER, values)
            self.names[column.name].append(name)


def _select(manifest: pa.Table, columns: Sequence[IndexColumn]) -> pa.Table:
    arrays = {
        column.name: _values(manifest[column.name])
        if column.name in manifest.column_names
        else pa.nulls(manifest.num_rows)
        for column in columns
    }
    return pa.table(arrays)


def _values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def _to_values(column: pa.ChunkedArray) -> list[object]:
    return [_to_value(value) for value in to_values(column)]


def _to_value(value: object) -> object:
    match value:
        case None | float() | str() | list():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return value if abs(value) <= MAX_SAFE_INTEGER else str(value)
        case Decimal():
            return float(value)
        case _:
            return str(value)
