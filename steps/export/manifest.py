"""The manifest of an export: one table, in pieces, of where each image is and what it is."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.export.plan import ExportPlan, read_file_rows
from imagekiln.steps.runs.forgotten import NO_IDS
from imagekiln.steps.runs.image import FORGOTTEN_STATUS
from imagekiln.steps.runs.tables import FIELD_TYPES
from imagekiln.steps.storage.store import Store

MANIFEST_ROWS = 2**19
MANIFEST_COLUMNS = ("image_id", "id", "byte_size", "sha256", "run_id")
FILE_COLUMNS = ("byte_size", "sha256")  # of a file, which a removed image has not


def cut_manifest(plan: ExportPlan) -> list[list[int]]:
    """The numbers of the files of each piece of the manifest."""
    pieces: list[list[int]] = [[]]
    rows = 0
    for number, file in enumerate(plan.files):
        if pieces[-1] and rows + file.images > MANIFEST_ROWS:
            pieces.append([])
            rows = 0
        pieces[-1].append(number)
        rows += file.images
    return pieces


def iter_manifest(
    store: Store, plan: ExportPlan, forgotten: pa.Array = NO_IDS
) -> Iterator[pa.Table]:
    """The manifest in pieces of whole files: where each image is, and what it is.

    Those that were removed are in no file.
    """
    for numbers in cut_manifest(plan):
        tables = [_file_manifest(store, plan, number, forgotten) for number in numbers]
        yield pa.concat_tables(tables).combine_chunks()


def _file_manifest(store: Store, plan: ExportPlan, number: int, forgotten: pa.Array) -> pa.Table:
    rows = read_file_rows(store, plan, number)
    key = plan.files[number].key
    is_removed = pc.is_in(rows["image_id"].combine_chunks(), forgotten)
    is_left = pc.invert(is_removed)
    ranks = pc.cumulative_sum(is_left.cast(pa.int64()))
    columns = {
        "file": pc.if_else(is_left, key, None),
        "row": pc.if_else(is_left, pc.subtract(ranks, 1), None),
        "status": pc.if_else(is_left, "ok", FORGOTTEN_STATUS),
    }
    for name in MANIFEST_COLUMNS:
        kind = FIELD_TYPES[name]
        columns[name] = pa.nulls(rows.num_rows, kind)
    copied = {*MANIFEST_COLUMNS, plan.settings.partition_by}
    for name in rows.column_names:
        if name in copied:
            columns[name] = rows[name]
    for name in FILE_COLUMNS:
        columns[name] = pc.if_else(is_left, columns[name], None)
    return pa.table(columns)
