"""The manifest of an export: one table, in pieces, with the file and row of each image."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import pyarrow as pa

from imagekiln.steps.export.commits import ExportCommit, ExportFile, read_file_rows
from imagekiln.steps.export.formats import FILE_NAME_COLUMN
from imagekiln.steps.export.layout import manifest_piece_key
from imagekiln.steps.runs.tables import read_table, to_parquet
from imagekiln.steps.storage.store import Store

MANIFEST_ROWS = 2**19
MANIFEST_COLUMNS = ("image_id", "id", "byte_size", "sha256", "run_id")


def assign_pieces(
    files: Sequence[ExportFile], earlier: Sequence[ExportFile], commit: int
) -> Iterator[ExportFile]:
    """The files with the pieces of the manifest that have their rows.

    A piece stays if all of its files do. Others, and those of new files, come with `commit`.
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
    pieces: dict[str, list[ExportFile]] = {}
    for file in commit.announced or ():
        if file.manifest not in known:
            pieces.setdefault(file.manifest, []).append(file)
    for key, files in pieces.items():
        tables = [_file_manifest(store, commit, file) for file in files]
        piece = pa.concat_tables(tables)
        store.create(key, to_parquet(piece.combine_chunks()))


def _file_manifest(store: Store, commit: ExportCommit, file: ExportFile) -> pa.Table:
    """The file and row of each image, and what it is. A picture is in the table of its folder."""
    rows = read_file_rows(store, file)
    if commit.settings.format == "files":
        keys = _read_picture_keys(store, file)
    else:
        keys = [file.key] * rows.num_rows
    copied = {*MANIFEST_COLUMNS, commit.settings.partition_by}
    columns = [name for name in rows.column_names if name in copied]
    table = rows.select(columns)
    numbers = pa.array(range(rows.num_rows), pa.int64())
    table = table.add_column(0, "row", numbers)
    return table.add_column(0, "file", pa.array(keys))


def _read_picture_keys(store: Store, file: ExportFile) -> list[str]:
    """The key of each picture in a folder, by the names in the folder's table."""
    folder = PurePosixPath(file.key).parent
    names = read_table(store, file.key)[FILE_NAME_COLUMN]
    return [f"{folder}/{name}" for name in names.to_pylist()]
