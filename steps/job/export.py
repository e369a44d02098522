"""Exports of a job's output, for readers that need other files than those of its runs."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import ByteSize, Field, model_validator

from imagekiln.steps.job.fields import Location, NonEmptyText, Settings

ExportFormat = Literal["parquet", "webdataset", "files"]
MAX_EXPORTS = 8
MIN_FILE_BYTES = 10**6
# A file is made in memory, and goes to S3 in one request of at most 5 GiB.
MAX_FILE_BYTES = 4 * 10**9


class RunExport(Settings):
    """An export of all runs of the output that have finished, which grows by each."""

    to: Location = Field(description="The folder or URI of the export.")
    format: ExportFormat = "parquet"
    file_size: Annotated[ByteSize, Field(ge=MIN_FILE_BYTES, le=MAX_FILE_BYTES)] | None = Field(
        default=None, description="The most that a file has, such as 1GB."
    )
    partition_by: NonEmptyText | None = Field(
        default=None, description="The column whose values become folders."
    )
    columns: tuple[NonEmptyText, ...] | None = Field(
        default=None, description="The columns of the export; where absent, all."
    )

    @model_validator(mode="after")
    def _require_files_with_a_size(self) -> "RunExport":
        if self.format == "files" and self.file_size is not None:
            raise ValueError(
                "has file_size and format: files, where each image is a file; remove file_size"
            )
        return self


def check_exports(exports: Sequence[RunExport], output: str) -> None:
    """Raise ValueError if a copy would lie where the runs or other copies do."""
    used = {output.rstrip("/"): "output"}
    for index, settings in enumerate(exports):
        name = f"export[{index}].to"
        folder = settings.to.rstrip("/")
        if folder in used:
            raise ValueError(f"has {name} and {used[folder]} in one folder; change one of them")
        used[folder] = name
