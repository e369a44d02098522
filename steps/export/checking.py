"""Whether an export holds the images and rows that were planned, before it is published."""

import hashlib
from collections.abc import Container, Iterator
from pathlib import PurePosixPath
from typing import TypeAlias

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.export.copying import file_columns
from imagekiln.steps.export.plan import ExportPlan, read_file_rows
from imagekiln.steps.runs.damage import damage_error
from imagekiln.steps.runs.parquet_format import image_table_schema
from imagekiln.steps.runs.sidecar import sidecar_lines
from imagekiln.steps.runs.tables import IMAGE_FIELD, from_parquet, parse_parquet
from imagekiln.steps.runs.webdataset_format import iter_members
from imagekiln.steps.storage.store import Store

BATCH_ROWS = 16
SIDECAR_SUFFIXES = (".json", ".txt")
PlannedFile: TypeAlias = tuple[str, str, str]  # the image's id, the file's name, its hash


def require_planned_images(
    store: Store, plan: ExportPlan, number: int, content: bytes, forgotten: Container[str]
) -> None:
    """Raise BadInput where a file's content is damaged, or has others than the planned images."""
    rows = read_file_rows(store, plan, number)
    where = store.uri_of(plan.files[number].key)
    if plan.settings.format == "parquet":
        what = "images"
        planned = _image_hashes(rows)
        schema = image_table_schema(rows.select(file_columns(plan, rows)).schema)
        files = _iter_parquet(content, where, schema)
    else:
        what = "images and sidecars"
        planned = _member_hashes(plan, rows)
        files = _iter_tar(content, where)
    left = [(name, sha256) for image_id, name, sha256 in planned if image_id not in forgotten]
    if [(name, hashlib.sha256(file).hexdigest()) for name, file in files] != left:
        raise _other_content(where, what)


def read_planned_manifest(store: Store, key: str, planned: pa.Table) -> bytes:
    """A piece of the manifest. Raises BadInput where it is damaged, or has other rows."""
    content = store.read(key)
    where = store.uri_of(key)
    if not from_parquet(content, where).equals(planned):
        raise _other_content(where, "rows")
    return content


def _other_content(where: str, what: str) -> BadInput:
    return BadInput(
        f"{where}: has not the {what} that were planned. Restore it, or export to another folder."
    )


def _image_hashes(rows: pa.Table) -> Iterator[PlannedFile]:
    ids = rows["image_id"].to_pylist()
    return zip(ids, ids, rows["sha256"].to_pylist(), strict=True)


def _member_hashes(plan: ExportPlan, rows: pa.Table) -> Iterator[PlannedFile]:
    """The images and sidecars of a tar, in their order."""
    lines = sidecar_lines(rows.select(file_columns(plan, rows)))
    prompts = rows["prompt"].to_pylist()
    for image, line, prompt in zip(_image_hashes(rows), lines, prompts, strict=True):
        yield image
        image_id, _, _ = image
        for suffix, text in zip(SIDECAR_SUFFIXES, (line, prompt.encode()), strict=True):
            yield image_id, f"{image_id}{suffix}", hashlib.sha256(text).hexdigest()


def _iter_parquet(content: bytes, where: str, schema: pa.Schema) -> Iterator[tuple[str, bytes]]:
    """The images by id. All columns are read, so that the checksums of all pages are compared."""
    with parse_parquet(content, where) as parquet:
        if not parquet.schema_arrow.equals(schema):  # which have no checksum
            raise _other_content(where, "columns")
        for batch in parquet.iter_batches(BATCH_ROWS, use_threads=False):
            names = batch["image_id"].to_pylist()
            files = batch[IMAGE_FIELD.name].to_pylist()
            for name, file in zip(names, files, strict=True):
                yield name, file["bytes"]


def _iter_tar(content: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """The images by id, and the sidecars by name."""
    try:
        for member in iter_members(content):
            name = PurePosixPath(member.name)
            file = content[member.content : member.content + member.size]
            yield name.name if name.suffix in SIDECAR_SUFFIXES else name.stem, file
    except ValueError as error:
        raise damage_error(where, error) from error
