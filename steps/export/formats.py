"""Files of an export in each format, and the pieces of its manifest.

A Parquet file has a row group for each batch of images, and an Arrow stream has a record batch. A
WebDataset tar has three members for each image: the image, its row as JSON, and its prompt; with
triplets, also its input images. A folder of pictures has a file for each image, and its row as JSON
beside it. Its table `metadata.parquet`, which Hugging Face's `imagefolder` reads, is written last.
A folder without the table is incomplete and is written again.

The same images give the same bytes.

To add a format, list it in `ExportFormat` (`steps/job/output.py`) and its suffix in
`FORMAT_SUFFIXES` (`commits.py`), write its files here, and say in `card.py` how it is loaded.
Search for `"files"` to find where a folder of pictures differs. docs/export.md describes each
format, and the `FORMATS` of `tests/steps/export` run it.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.export.commits import (
    ExportCommit,
    ExportFile,
    manifest_piece_key,
    read_file_rows,
)
from imagekiln.steps.export.rows import cut_rows
from imagekiln.steps.export.triplets import (
    InputImages,
    name_inputs,
    read_inputs,
    triplet_schema,
    triplet_table,
)
from imagekiln.steps.runs.parts import (
    image_column,
    image_table_options,
    image_table_schema,
)
from imagekiln.steps.runs.readback import read_images
from imagekiln.steps.runs.row_values import json_lines
from imagekiln.steps.runs.tables import LOCATION_SCHEMA, parquet_options, read_table, to_parquet
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.store import Store, create_once

BATCH_BYTES = 2**25
BATCHES_AT_ONCE = 2
IMAGE_READERS = 8
PICTURE_WRITERS = 16
FILE_NAME_COLUMN = "file_name"
MANIFEST_ROWS = 2**19
MANIFEST_COLUMNS = ("image_id", "id", "byte_size", "sha256", "run_id")


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Images of a file with their rows, and the suffix of each image's own file.

    `inputs` are the input images of each row; None if they are not exported.
    """

    rows: pa.Table
    contents: Sequence[bytes]
    suffixes: Sequence[str]
    inputs: Sequence[InputImages] | None = None

    @property
    def images(self) -> pa.Array:
        """The column of images."""
        image_ids = self.rows["image_id"].to_pylist()
        names = [
            f"{image_id}{suffix}" for image_id, suffix in zip(image_ids, self.suffixes, strict=True)
        ]
        return image_column(self.contents, names)


def make_file(output: Store, store: Store, commit: ExportCommit, file: ExportFile) -> bytes:
    """Build an announced file of the export in `store`, or the table of a folder of pictures.

    Pictures are written before their table is returned. `output` contains the runs. Raises BadInput
    if an image is damaged, Missing if an object is gone, TryAgain.
    """
    rows = read_file_rows(store, file)
    columns = file_columns(commit, rows)
    batches = _read_batches(output, commit, rows, columns)
    match commit.settings.format:
        case "webdataset":
            return write_tar(batches)
        case "files":
            return write_pictures(batches, store, file.key)
        case kind:
            schema = rows.select(columns).schema
            return write_tables(batches, schema, kind, triplets=commit.settings.triplets)


def file_columns(commit: ExportCommit, rows: pa.Table) -> list[str]:
    """Return the columns of a file with these rows, besides its images."""
    left_out: set[str | None] = set(LOCATION_SCHEMA.names)
    if commit.settings.format == "parquet":
        left_out.add(commit.settings.partition_by)  # readers take it from the folder's name
    return [name for name in rows.column_names if name not in left_out]


def _read_batches(
    output: Store, commit: ExportCommit, rows: pa.Table, columns: Sequence[str]
) -> Iterator[ImageBatch]:
    """Read the images of these rows from the parts of runs."""
    tables = iter([rows])
    batches = list(cut_rows(tables, BATCH_BYTES, "parquet", triplets=commit.settings.triplets))
    suffix_of = {run.run_id: run.suffix for run in commit.runs}
    with ThreadPoolExecutor(IMAGE_READERS) as pool:

        def read(index: int) -> ImageBatch:
            batch = batches[index]
            contents = read_images(output, batch, pool)
            suffixes = []
            for part in batch["part"].to_pylist():
                folder, _, _ = part.partition("/")
                suffixes.append(suffix_of[folder])
            inputs = None
            if commit.settings.triplets:
                inputs = read_inputs(output, batch, pool)
            return ImageBatch(batch.select(columns), contents, suffixes, inputs)

        yield from map_ordered(read, len(batches), BATCHES_AT_ONCE)


def write_tables(
    batches: Iterable[ImageBatch],
    rows: pa.Schema,
    kind: Literal["parquet", "arrow"],
    *,
    triplets: bool = False,
) -> bytes:
    """Write images with rows of this schema as a Parquet file or an Arrow stream."""
    schema = triplet_schema(rows) if triplets else image_table_schema(rows)
    sink = io.BytesIO()
    options = parquet_options(schema) if triplets else image_table_options(schema)
    with (
        pq.ParquetWriter(sink, schema, **options)
        if kind == "parquet"
        else pa.ipc.new_stream(sink, schema)
    ) as writer:
        for batch in batches:
            if batch.inputs is None:
                columns = [batch.images, *batch.rows.columns]
                table = pa.Table.from_arrays(columns, schema=schema)
            else:
                table = triplet_table(batch.rows, batch.images, batch.inputs)
            writer.write_table(table.combine_chunks())
    return sink.getvalue()


def write_tar(batches: Iterable[ImageBatch]) -> bytes:
    """Write a WebDataset tar, without times and owners."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for batch in batches:
            samples = zip(
                batch.rows["image_id"].to_pylist(),
                batch.suffixes,
                batch.contents,
                json_lines(batch.rows),
                batch.rows["prompt"].to_pylist(),
                batch.inputs or [()] * batch.rows.num_rows,
                strict=True,
            )
            for image_id, suffix, content, line, prompt, inputs in samples:
                # Readers expect the image first.
                members = {suffix: content, ".json": line, ".txt": prompt.encode()}
                members |= name_inputs(inputs)
                for extension, data in members.items():
                    info = tarfile.TarInfo(f"{image_id}{extension}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def write_pictures(batches: Iterable[ImageBatch], store: Store, key: str) -> bytes:
    """Write the pictures that an interrupted export has not written, and return their table.

    Raises BadInput if other files have their names.
    """
    create = partial(create_once, store)
    tables: list[pa.Table] = []
    first = 0
    with ThreadPoolExecutor(PICTURE_WRITERS) as pool:
        for batch in batches:
            paths = list(picture_paths(key, batch.suffixes, first))
            first += len(paths)
            keys = list(map(str, paths))
            json_keys = [str(path.with_suffix(".json")) for path in paths]
            list(pool.map(create, keys, batch.contents))
            list(pool.map(create, json_keys, json_lines(batch.rows)))
            file_names = [path.name for path in paths]
            table = _without_file_names(batch.rows)
            table = table.add_column(0, FILE_NAME_COLUMN, pa.array(file_names))
            tables.append(table)
    return to_parquet(pa.concat_tables(tables))


def _without_file_names(rows: pa.Table) -> pa.Table:
    """Drop columns that `imagefolder` reads as paths, even in a field of a struct."""
    names = [field.name for field in rows.schema if FILE_NAME_COLUMN not in str(field)]
    return rows.select(names)


def picture_paths(key: str, suffixes: Iterable[str], first: int = 0) -> Iterator[PurePosixPath]:
    """Yield the keys of pictures beside the table at `key`, from the number `first` on.

    A name contains the numbers of the folder and of the picture, and no user input.
    """
    folder = PurePosixPath(key).parent
    for index, suffix in enumerate(suffixes, first):
        yield folder / f"{folder.name}-{index:05d}{suffix}"


def assign_pieces(
    files: Sequence[ExportFile], earlier: Sequence[ExportFile], commit: int
) -> Iterator[ExportFile]:
    """Assign each file to the piece of the manifest that has its rows.

    A piece is kept if all of its files are. The other files are assigned to new pieces of `commit`.
    """
    left = {file.key for file in files}
    broken = {"", *(file.manifest for file in earlier if file.key not in left)}
    rows = 0
    for file in files:
        if file.manifest not in broken:
            yield file
            continue
        yield replace(file, manifest=manifest_piece_key(commit, rows // MANIFEST_ROWS))
        rows += file.images


def write_pieces(store: Store, commit: ExportCommit) -> None:
    """Write the pieces of the manifest that a commit has announced. Raises TryAgain."""
    known = {*commit.pieces}
    announced = commit.announced or ()
    new = (file for file in announced if file.manifest not in known)
    for key, files in groupby(new, attrgetter("manifest")):
        tables = []
        for file in files:
            rows = _manifest_rows(store, commit, file)
            tables.append(rows)
        piece = pa.concat_tables(tables)
        content = to_parquet(piece.combine_chunks())
        store.create(key, content)


def _manifest_rows(store: Store, commit: ExportCommit, file: ExportFile) -> pa.Table:
    """Build the manifest rows of a file: the location and the metadata of each image.

    A picture's location is the table of its folder.
    """
    rows = read_file_rows(store, file)
    images = rows.num_rows
    keys = [file.key] * images
    if commit.settings.format == "files":
        folder = PurePosixPath(file.key).parent
        table = read_table(store, file.key)
        names = table[FILE_NAME_COLUMN].to_pylist()
        keys = [f"{folder}/{name}" for name in names]
    copied = {*MANIFEST_COLUMNS, commit.settings.partition_by}
    columns = [name for name in rows.column_names if name in copied]
    numbers = pa.array(range(images), pa.int64())
    table = rows.select(columns).add_column(0, "row", numbers)
    files = pa.array(keys)
    return table.add_column(0, "file", files)
