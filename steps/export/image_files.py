"""The files of an export while they are made: Parquet, or the tars of WebDataset.

Both are laid out as a run's parts are, but for their size. The same rows in the same pieces give
the same bytes.
"""

import io
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.export.settings import FileFormat
from imagekiln.steps.runs.parquet_format import (
    image_column,
    image_table_options,
    image_table_schema,
)
from imagekiln.steps.runs.webdataset_format import END_OF_ARCHIVE, build_samples


class OpenImageFile(Protocol):
    """A file that images are appended to, and that is whole once it was finished."""

    def add(self, rows: pa.Table, contents: Sequence[bytes], suffixes: Sequence[str]) -> None:
        """Append images: their rows, the bytes of their files, and the suffixes of these."""

    def finish(self) -> bytes:
        """All bytes of the file, to which nothing is appended any more."""


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
        image_ids = rows["image_id"].to_pylist()
        names = list(map("".join, zip(image_ids, suffixes, strict=True)))
        columns = [image_column(contents, names), *rows.columns]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table.combine_chunks())

    def finish(self) -> bytes:
        """All bytes of the file."""
        self._writer.close()
        return self._sink.getvalue()


class TarFile:
    """A tar of samples: each image with its row as JSON and its prompt as text."""

    def __init__(self) -> None:
        """Begin without images."""
        self._sink = io.BytesIO()

    def add(self, rows: pa.Table, contents: Sequence[bytes], suffixes: Sequence[str]) -> None:
        """Append images."""
        for sample in build_samples(rows, contents, suffixes):
            self._sink.write(sample or b"")

    def finish(self) -> bytes:
        """All bytes of the file."""
        self._sink.write(END_OF_ARCHIVE)
        return self._sink.getvalue()


def open_image_file(kind: FileFormat, rows: pa.Schema) -> OpenImageFile:
    """An empty file of this format, for rows with this schema."""
    if kind == "parquet":
        return ParquetFile(rows)
    return TarFile()
