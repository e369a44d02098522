"""Settings of an export."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import ByteSize, Field, TypeAdapter, ValidationError, with_config

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.output import MAX_FILE_BYTES, MIN_FILE_BYTES, ExportFormat

DEFAULT_FILE_SIZE = "500MB"
DEFAULT_NEWEST_BY = "image_id"


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Settings of an export. `file_size` is the maximum size in bytes, `columns` all if None.

    With the format `files` each image is a file, and `file_size` has no effect. `partition_by` is
    the column whose values become folders. Images with the same value in `newest_by` are exported
    only from the newest run that has one. With `triplets`, each row has its input images too.
    """

    format: ExportFormat
    file_size: Annotated[ByteSize, Field(ge=MIN_FILE_BYTES, le=MAX_FILE_BYTES)]
    partition_by: str | None = None
    columns: tuple[str, ...] | None = None
    newest_by: str = DEFAULT_NEWEST_BY
    triplets: bool = False


SETTINGS_TYPE_ADAPTER: TypeAdapter[ExportSettings] = TypeAdapter(ExportSettings)


def read_settings(
    file_format: str = "parquet",
    file_size: str | int | None = None,
    partition_by: str | None = None,
    columns: Sequence[str] | None = None,
    newest_by: str = DEFAULT_NEWEST_BY,
    *,
    triplets: bool = False,
) -> ExportSettings:
    """Parse settings that a user wrote. Raises BadInput."""
    if triplets and file_format == "files":
        raise BadInput("triplets: do not come as files. Export parquet, arrow or webdataset.")
    if triplets and partition_by == "prompt":
        raise BadInput("triplets: cannot be partitioned by prompt, which is one of their columns.")
    if file_format == "files" and file_size is not None:
        raise BadInput("file size: does not apply to `files`, as each image is one. Remove it.")
    values = {
        "format": file_format,
        "file_size": DEFAULT_FILE_SIZE if file_size is None else file_size,
        "partition_by": partition_by,
        "columns": columns,
        "newest_by": newest_by,
        "triplets": triplets,
    }
    try:
        return SETTINGS_TYPE_ADAPTER.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{first['loc'][0]}: {first['msg']}. Correct it.") from error
