"""Whether a file of an export holds the images that were planned, before it is published."""

import hashlib
from collections.abc import Container, Iterator
from pathlib import PurePosixPath

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.export.copying import file_columns
from imagekiln.steps.export.plan import ExportPlan, read_file_rows
from imagekiln.steps.runs.damage import damage_error
from imagekiln.steps.runs.parquet_format import image_table_schema
from imagekiln.steps.runs.tables import IMAGE_FIELD, parse_parquet
from imagekiln.steps.runs.tar_members import iter_members
from imagekiln.steps.storage.store import Store

BATCH_ROWS = 16
SIDECAR_SUFFIXES = (".json", ".txt")


def require_planned_images(
    store: Store, plan: ExportPlan, number: int, content: bytes, forgotten: Container[str]
) -> None:
    """Raise BadInput where a file's content is damaged, or has others than the planned images."""
    rows = read_file_rows(store, plan, number)
    where = store.uri_of(plan.files[number].key)
    names = zip(rows["image_id"].to_pylist(), rows["sha256"].to_pylist(), strict=True)
    planned = [(name, sha256) for name, sha256 in names if name not in forgotten]
    if plan.settings.format == "parquet":
        schema = image_table_schema(rows.select(file_columns(plan, rows)).schema)
        images = _iter_parquet(content, where, schema)
    else:
        images = _iter_tar(content, where)
    if [(name, hashlib.sha256(image).hexdigest()) for name, image in images] != planned:
        raise BadInput(
            f"{where}: has not the images that were planned. Restore it, or export to another "
            "folder."
        )


def _iter_parquet(content: bytes, where: str, schema: pa.Schema) -> Iterator[tuple[str, bytes]]:
    """The images by id. All columns are read, so that the checksums of all pages are compared."""
    with parse_parquet(content, where) as parquet:
        if not parquet.schema_arrow.equals(schema):  # which have no checksum
            raise BadInput(
                f"{where}: has not the columns that were planned. Restore it, or export to another "
                "folder."
            )
        for batch in parquet.iter_batches(BATCH_ROWS, use_threads=False):
            names = batch["image_id"].to_pylist()
            files = batch[IMAGE_FIELD.name].to_pylist()
            for name, file in zip(names, files, strict=True):
                yield name, file["bytes"]


def _iter_tar(content: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    try:
        for member in iter_members(content):
            name = PurePosixPath(member.name)
            if name.suffix not in SIDECAR_SUFFIXES:
                yield name.stem, content[member.content : member.content + member.size]
    except ValueError as error:
        raise damage_error(where, error) from error
