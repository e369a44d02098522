"""Copying the images of one file: read by ranges, compared with their hashes, written whole."""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.dataset.image_ranges import read_images
from imagekiln.steps.errors import BadInput, StorageRefused
from imagekiln.steps.export.plan import ExportPlan, read_file_rows
from imagekiln.steps.export.settings import FileFormat
from imagekiln.steps.runs.forgotten import read_forgotten_ids
from imagekiln.steps.runs.parquet_format import (
    image_column,
    image_table_options,
    image_table_schema,
)
from imagekiln.steps.runs.tables import LOCATION_SCHEMA
from imagekiln.steps.runs.webdataset_format import END_OF_ARCHIVE, build_samples
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

RUN_READERS = 16
BATCH_BYTES = 2**25
BATCH_ROWS = 4096
BATCHES_AT_ONCE = 2
IMAGE_READERS = 8


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Where the images of an export come from: the folder of the output, or of its only run."""

    store: Store
    plan: ExportPlan

    def locate(self, rows: pa.Table) -> pa.Table:
        """The rows, with the keys of their objects in the source. Raises BadInput."""
        parts = rows["part"].to_pylist()
        keys = list(map(self._key_of, parts))
        index = rows.schema.get_field_index("part")
        return rows.set_column(index, "part", pa.array(keys))

    def read_forgotten(self) -> dict[str, frozenset[str]]:
        """The ids of the images that were taken down from each run of the plan, by its id."""
        run_ids = [run.run_id for run in self.plan.runs]

        def read(index: int) -> frozenset[str]:
            folder = open_store(self._run_uri(run_ids[index]))
            return frozenset(read_forgotten_ids(folder).to_pylist())

        ids = map_ordered(read, len(run_ids), RUN_READERS)
        return dict(zip(run_ids, ids, strict=True))

    def suffixes(self, rows: pa.Table) -> list[str]:
        """The suffix of each image's file."""
        suffixes = {run.run_id: run.suffix for run in self.plan.runs}
        parts = rows["part"].to_pylist()
        return [suffixes[_run_of(part)] for part in parts]

    def _key_of(self, part: str) -> str:
        if not self.plan.is_run:
            return part
        _, _, key = part.partition("/")
        return key

    def _run_uri(self, run_id: str) -> str:
        uri = self.store.uri
        return uri if self.plan.is_run else f"{uri}/{run_id}"


def _run_of(part: str) -> str:
    """The id of the run of a planned row, from its part."""
    run_id, _, _ = part.partition("/")
    return run_id


def make_file(source: ExportSource, store: Store, number: int) -> bytes:
    """The bytes of one file of the export in `store`.

    Raises BadInput where an image is damaged, Missing where an object is gone, TryAgain.
    """
    plan = source.plan
    rows = read_file_rows(store, plan, number)
    pieces = list(cut_pieces(rows))
    columns = file_columns(plan, rows)
    file = open_image_file(plan.settings.format, rows.select(columns).schema)
    with ThreadPoolExecutor(IMAGE_READERS) as pool:

        def read(index: int) -> list[bytes]:
            return read_images(source.store, source.locate(pieces[index]), pool)

        contents = map_ordered(read, len(pieces), BATCHES_AT_ONCE)
        for piece, images in zip(pieces, _explain_damage(contents), strict=True):
            file.add(
                piece.select(columns),
                images,
                source.suffixes(piece),
            )
    return file.finish()


def file_columns(plan: ExportPlan, rows: pa.Table) -> list[str]:
    """The columns of a file with these rows, besides its images."""
    left_out: set[str | None] = set(LOCATION_SCHEMA.names)
    if plan.settings.format == "parquet":
        left_out.add(plan.settings.partition_by)  # readers take it from the folder's name
    return [name for name in rows.column_names if name not in left_out]


def cut_pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in pieces whose images fit in memory several times."""
    sizes = rows["byte_size"].to_pylist()
    start = 0
    size = 0
    for index, image_size in enumerate(sizes):
        is_full = size + image_size > BATCH_BYTES or index - start == BATCH_ROWS
        if is_full and index > start:
            yield rows.slice(start, index - start)
            start = index
            size = 0
        size += image_size
    yield rows.slice(start)


def _explain_damage(contents: Iterator[list[bytes]]) -> Iterator[Sequence[bytes]]:
    try:
        yield from contents
    except StorageRefused:
        raise
    except BadInput as error:
        raise type(error)(
            *error.args,
            "Then run the same command again. An image that was generated anew may have other "
            "bytes: then export to another destination.",
        ) from error


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
