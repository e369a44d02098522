"""A Parquet file of an export: images with their rows."""

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.runs.part_file import (
    image_column,
    image_table_options,
    image_table_schema,
)


class ParquetFile:
    """A Parquet file, with a row group for the images of each call."""

    def __init__(self, rows: pa.Schema) -> None:
        """Begin without images, whose rows will have this schema."""
        self._schema = image_table_schema(rows)
        self._sink = io.BytesIO()
        options = image_table_options(self._schema)
        self._writer = pq.ParquetWriter(self._sink, self._schema, **options)

    def add(self, rows: pa.Table, contents: Sequence[bytes], suffixes: Sequence[str]) -> None:
        """Append images."""
        names = []
        image_ids = rows["image_id"].to_pylist()
        for image_id, suffix in zip(image_ids, suffixes, strict=True):
            names.append(f"{image_id}{suffix}")
        columns = [image_column(contents, names), *rows.columns]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table.combine_chunks())

    def finish(self) -> bytes:
        """All bytes of the file."""
        self._writer.close()
        return self._sink.getvalue()
