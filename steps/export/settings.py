"""Settings of an export."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from pydantic import ByteSize, Field, TypeAdapter, ValidationError, with_config

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.job.output import MAX_FILE_BYTES, MIN_FILE_BYTES, ExportFormat
from imagekiln.steps.runtime.figures import format_bytes

FILE_FORMATS: dict[str, ExportFormat] = {name: name for name in get_args(ExportFormat)}
DEFAULT_FILE_SIZE = "500MB"
DEFAULT_NEWEST_BY = "image_id"
BYTE_SIZE_TYPE_ADAPTER: TypeAdapter[ByteSize] = TypeAdapter(ByteSize)


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Settings of an export. `file_bytes` is the most that one has, `columns` all if None.

    With the format `files` each image is a file, and `file_bytes` says nothing.
    `partition_by` is the column whose values become folders. Images with the same value in
    `newest_by` are exported from the newest run alone that has one.
    """

    format: ExportFormat
    file_bytes: Annotated[int, Field(ge=MIN_FILE_BYTES, le=MAX_FILE_BYTES)]
    partition_by: str | None = None
    columns: tuple[str, ...] | None = None
    newest_by: str = DEFAULT_NEWEST_BY


def read_settings(
    file_format: str = "parquet",
    file_size: str | int | None = None,
    partition_by: str | None = None,
    columns: Sequence[str] | None = None,
    newest_by: str = DEFAULT_NEWEST_BY,
) -> ExportSettings:
    """Settings from what a user wrote. Raises BadInput."""
    if file_format not in FILE_FORMATS:
        raise BadInput(
            f"format {cut_name(file_format)!r}: is unknown. Choose {' or '.join(FILE_FORMATS)}."
        )
    if file_format == "files" and file_size is not None:
        raise BadInput("file size: does not apply to `files`, where each image is one. Remove it.")
    return ExportSettings(
        format=FILE_FORMATS[file_format],
        file_bytes=_read_size(DEFAULT_FILE_SIZE if file_size is None else file_size),
        partition_by=partition_by,
        columns=None if columns is None else tuple(columns),
        newest_by=newest_by,
    )


def _read_size(text: str | int) -> int:
    try:
        size = int(BYTE_SIZE_TYPE_ADAPTER.validate_python(text))
    except ValidationError:
        size = 0
    if not MIN_FILE_BYTES <= size <= MAX_FILE_BYTES:
        raise BadInput(
            f"file size {cut_name(str(text))}: is no size between {format_bytes(MIN_FILE_BYTES)} "
            f"and {format_bytes(MAX_FILE_BYTES)}. Write one such as {DEFAULT_FILE_SIZE} or 1GB."
        )
    return size
