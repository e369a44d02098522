"""Files of an export, in each of its formats: images copied from runs, with their rows.

A Parquet file has a row group for each batch of images, an Arrow stream a record batch. A tar of
WebDataset has three members for each image: the image, its row as JSON, and its prompt. A folder of
pictures has a file for each image, with its row as JSON beside it. Its table `metadata.parquet`,
which Hugging Face's `imagefolder` reads, is written last and makes it whole: a folder without it is
written again.

The same images give the same bytes.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.export.commits import ExportCommit, ExportFile, read_file_rows
from imagekiln.steps.export.rows import cut_rows
from imagekiln.steps.runs.parts import (
    image_column,
    image_table_options,
    image_table_schema,
)
from imagekiln.steps.runs.readback import read_images
from imagekiln.steps.runs.row_values import json_lines
from imagekiln.steps.runs.tables import LOCATION_SCHEMA, to_parquet
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.store import Store, create_once

BATCH_BYTES = 2**25
BATCHES_AT_ONCE = 2
IMAGE_READERS = 8
PICTURE_WRITERS = 16
END_OF_ARCHIVE = bytes(2 * tarfile.BLOCKSIZE)
MEMBER_MODE = 0o644
FILE_NAME_COLUMN = "file_name"


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Images of a file with their rows, and the suffix of each image's own file."""

    rows: pa.Table
    contents: Sequence[bytes]
    suffixes: Sequence[str]


def make_file(source: Store, store: Store, commit: ExportCommit, file: ExportFile) -> bytes:
    """The bytes of an announced file of the export in `store`, or of a folder of pictures' table.

    The pictures are written before. Raises BadInput if an image is damaged, Missing if an object is
    gone, TryAgain.
    """
    rows = read_file_rows(store, file)
    columns = file_columns(commit, rows)
    batches = _read_batches(source, commit, rows, columns)
    match commit.settings.format:
        case "parquet":
            return write_parquet(batches, rows.select(columns).schema)
        case "arrow":
            return write_arrow(batches, rows.select(columns).schema)
        case "webdataset":
            return write_tar(batches)
        case "files":
            return write_pictures(batches, store, file.key)


def file_columns(commit: ExportCommit, rows: pa.Table) -> list[str]:
    """The columns of a file with these rows, besides its images."""
    left_out: set[str | None] = set(LOCATION_SCHEMA.names)
    if commit.settings.format == "parquet":
        left_out.add(commit.settings.partition_by)  # readers take it from the folder's name
    return [name for name in rows.column_names if name not in left_out]


def _read_batches(
    source: Store, commit: ExportCommit, rows: pa.Table, columns: Sequence[str]
) -> Iterator[ImageBatch]:
    """The images of these rows, from the parts of runs."""
    batches = list(cut_rows(iter([rows]), BATCH_BYTES, "parquet"))
    with ThreadPoolExecutor(IMAGE_READERS) as pool:

        def read(index: int) -> ImageBatch:
            batch = batches[index]
            located = batch
            if commit.is_run:
                keys = pc.replace_substring_regex(batch["part"], "^[^/]*/", "")
                place = batch.schema.get_field_index("part")
                located = batch.set_column(place, "part", keys)
            contents = read_images(source, located, pool)
            return ImageBatch(batch.select(columns), contents, commit.suffixes(batch))

        yield from map_ordered(read, len(batches), BATCHES_AT_ONCE)


def write_parquet(batches: Iterable[ImageBatch], rows: pa.Schema) -> bytes:
    """A Parquet file of images whose rows have this schema."""
    schema = image_table_schema(rows)
    sink = io.BytesIO()
    options = image_table_options(schema)
    with pq.ParquetWriter(sink, schema, **options) as writer:
        for batch in batches:
            writer.write_table(_image_table(batch, schema))
    return sink.getvalue()


def write_arrow(batches: Iterable[ImageBatch], rows: pa.Schema) -> bytes:
    """An Arrow stream of the same rows, which `datasets` maps into memory without a copy."""
    schema = image_table_schema(rows)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_table(_image_table(batch, schema))
    return sink.getvalue()


def _image_table(batch: ImageBatch, schema: pa.Schema) -> pa.Table:
    names = []
    image_ids = batch.rows["image_id"].to_pylist()
    for image_id, suffix in zip(image_ids, batch.suffixes, strict=True):
        names.append(f"{image_id}{suffix}")
    columns = [image_column(batch.contents, names), *batch.rows.columns]
    return pa.Table.from_arrays(columns, schema=schema).combine_chunks()


def write_tar(batches: Iterable[ImageBatch]) -> bytes:
    """A tar of WebDataset."""
    sink = io.BytesIO()
    for batch in batches:
        samples = zip(
            batch.rows["image_id"].to_pylist(),
            batch.suffixes,
            batch.contents,
            json_lines(batch.rows),
            batch.rows["prompt"].to_pylist(),
            strict=True,
        )
        for image_id, suffix, content, line, prompt in samples:
            _append_member(sink, f"{image_id}{suffix}", content)  # readers expect it first
            _append_member(sink, f"{image_id}.json", line)
            _append_member(sink, f"{image_id}.txt", prompt.encode())
    sink.write(END_OF_ARCHIVE)
    return sink.getvalue()


def _append_member(sink: io.BytesIO, name: str, content: bytes) -> None:
    """Append a member without time and owner."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = MEMBER_MODE
    sink.write(info.tobuf(tarfile.USTAR_FORMAT))
    sink.write(content)
    sink.write(bytes(-len(content) % tarfile.BLOCKSIZE))


def write_pictures(batches: Iterable[ImageBatch], store: Store, key: str) -> bytes:
    """Write pictures, unless an interrupted export did, and return their table, of this key.

    Raises BadInput if others are there.
    """
    tables: list[pa.Table] = []
    first = 0
    with ThreadPoolExecutor(PICTURE_WRITERS) as pool:
        create = partial(create_once, store)
        for batch in batches:
            keys = list(picture_keys(key, batch.suffixes, first))
            first += len(keys)
            names = []
            json_keys = []
            for picture_key in keys:
                path = PurePosixPath(picture_key)
                names.append(path.name)
                json_keys.append(str(path.with_suffix(".json")))
            list(pool.map(create, keys, batch.contents))
            list(pool.map(create, json_keys, json_lines(batch.rows)))
            table = _without_file_names(batch.rows)
            named = table.add_column(0, FILE_NAME_COLUMN, pa.array(names))
            tables.append(named)
    return to_parquet(pa.concat_tables(tables))


def picture_keys(key: str, suffixes: Iterable[str], first: int = 0) -> Iterator[str]:
    """The keys of pictures in the folder with this table, from this one on.

    A name has the number of the folder and that of the picture, and nothing that users wrote.
    """
    folder = PurePosixPath(key).parent
    for index, suffix in enumerate(suffixes, first):
        yield f"{folder}/{folder.name}-{index:05d}{suffix}"


def _without_file_names(rows: pa.Table) -> pa.Table:
    """The columns without those that `imagefolder` takes for paths.

    It opens the path in every text whose name ends in "file_name", even in a field of a struct: the
    text of a field names those within it.
    """
    names = [field.name for field in rows.schema if FILE_NAME_COLUMN not in str(field)]
    return rows.select(names)
