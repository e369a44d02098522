"""Copying the images of one file: read by ranges, compared with their hashes, written whole."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, StorageRefused
from imagekiln.steps.export.commits import ExportCommit, ExportFile, read_file_rows
from imagekiln.steps.export.cutting import cut_rows
from imagekiln.steps.export.parquet_file import ParquetFile
from imagekiln.steps.export.picture_folder import PictureFolder
from imagekiln.steps.export.tar_file import TarFile
from imagekiln.steps.runs.readback import read_images
from imagekiln.steps.runs.tables import LOCATION_SCHEMA
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.store import Store

BATCH_BYTES = 2**25
BATCHES_AT_ONCE = 2
IMAGE_READERS = 8
OpenImageFile = ParquetFile | TarFile | PictureFolder


def make_file(source: Store, store: Store, commit: ExportCommit, file: ExportFile) -> bytes:
    """The bytes of an announced file of the export in `store`, or of a folder of pictures' table.

    The pictures are written before. Raises BadInput where an image is damaged, Missing where an
    object is gone, TryAgain.
    """
    rows = read_file_rows(store, file)
    pieces = list(cut_rows(iter([rows]), BATCH_BYTES, "parquet"))
    columns = file_columns(commit, rows)
    schema = rows.select(columns).schema
    image_file = _open_file(commit, store, file.key, schema)
    contents = _copy_images(source, commit, pieces)
    for piece, images in zip(pieces, contents, strict=True):
        image_file.add(
            piece.select(columns),
            images,
            commit.suffixes(piece),
        )
    return image_file.finish()


def file_columns(commit: ExportCommit, rows: pa.Table) -> list[str]:
    """The columns of a file with these rows, besides its images."""
    left_out: set[str | None] = set(LOCATION_SCHEMA.names)
    if commit.settings.format == "parquet":
        left_out.add(commit.settings.partition_by)  # readers take it from the folder's name
    return [name for name in rows.column_names if name not in left_out]


def _copy_images(
    source: Store, commit: ExportCommit, pieces: Sequence[pa.Table]
) -> Iterator[list[bytes]]:
    """The images of each piece, from the parts of runs. Raises BadInput, Missing, TryAgain."""
    with ThreadPoolExecutor(IMAGE_READERS) as pool:

        def read(index: int) -> list[bytes]:
            rows = pieces[index]
            if commit.is_run:
                keys = pc.replace_substring_regex(rows["part"], "^[^/]*/", "")
                place = rows.schema.get_field_index("part")
                rows = rows.set_column(place, "part", keys)
            return read_images(source, rows, pool)

        try:
            yield from map_ordered(read, len(pieces), BATCHES_AT_ONCE)
        except StorageRefused:
            raise
        except BadInput as error:
            raise type(error)(
                *error.args,
                "Then run the same command again. An image that was generated anew may have other "
                "bytes: then export to another destination.",
            ) from error


def _open_file(commit: ExportCommit, store: Store, key: str, rows: pa.Schema) -> OpenImageFile:
    """An empty file of the export's format, for rows with this schema."""
    match commit.settings.format:
        case "parquet":
            return ParquetFile(rows)
        case "webdataset":
            return TarFile()
        case "files":
            return PictureFolder(store, key)
