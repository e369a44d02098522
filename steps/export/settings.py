"""How images are put into files, as a user writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ByteSize, Field, TypeAdapter, ValidationError, with_config

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.runtime.figures import format_bytes

FileFormat = Literal["parquet", "webdataset"]
MIN_FILE_BYTES = 10**6
# A file is made in memory, and goes to S3 in one request of at most 5 GiB.
MAX_FILE_BYTES = 4 * 10**9
DEFAULT_FILE_SIZE = "500MB"
DEFAULT_NEWEST_BY = "image_id"
BYTE_SIZE_TYPE_ADAPTER: TypeAdapter[ByteSize] = TypeAdapter(ByteSize)


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class ExportSettings:
    """How images are put into files. `file_bytes` is the most that one has, `columns` all if None.

    `partition_by` is the column whose values become folders. Images with the same value in
    `newest_by` are exported from the newest run alone that has one.
    """

    format: FileFormat
    file_bytes: Annotated[int, Field(ge=MIN_FILE_BYTES, le=MAX_FILE_BYTES)]
    partition_by: str | None = None
    columns: tuple[str, ...] | None = None
    newest_by: str = DEFAULT_NEWEST_BY


def read_settings(
    file_format: str = "parquet",
    file_size: str | int = DEFAULT_FILE_SIZE,
    partition_by: str | None = None,
    columns: Sequence[str] | None = None,
    newest_by: str = DEFAULT_NEWEST_BY,
) -> ExportSettings:
    """Settings from what a user wrote. Raises BadInput."""
    if file_format not in ("parquet", "webdataset"):
        raise BadInput(
            f"format {cut_name(file_format)!r}: is unknown. Choose parquet or webdataset."
        )
    return ExportSettings(
        format="parquet" if file_format == "parquet" else "webdataset",
        file_bytes=_read_size(file_size),
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


def describe_setting(name: str, value: object) -> str:
    """A setting in the user's words, such as `format parquet` or `no partition-by`."""
    if name == "file_bytes" and isinstance(value, int):
        return f"file-size {format_bytes(value)}"
    option = name.replace("_", "-")
    if value is None:
        return f"no {option}"
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    return f"{option} {cut_name(text)}"
