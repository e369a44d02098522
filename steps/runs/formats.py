"""The formats that a job chooses from: how the images of a part are laid down, found and read back."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pyarrow as pa

from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.files_format import FilesFormat, imagefolder_metadata
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.parquet_format import ParquetFormat
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.readback import CheckResult
from imagekiln.steps.runs.shard import CHECKERS
from imagekiln.steps.runs.webdataset_format import WebDatasetFormat
from imagekiln.steps.storage.store import Store


class PackedPart(Protocol):
    """A part ready to be committed."""

    @property
    def part(self) -> Part:
        """The part as it was planned."""

    def commit(self, store: Store) -> None:
        """Write what the part is made of, its commit last; the first writer of each object wins.

        Raises BadInput where an object is there that is of another plan, or damaged.
        """


class PartFormat(Protocol):
    """A layout of parts. In each, one Parquet object, the part's `key`, says that the part is there, and of what."""

    def pack(self, part: Part, images: Sequence[EncodedImage]) -> PackedPart:
        """The part with these images, which may come in any order. The same images give the same bytes."""

    def recover(self, store: Store, part: Part) -> bool:
        """Commit a part whose images are all there already; False where any is not. Raises as commit does."""

    def object_keys(self, part: Part) -> list[str]:
        """The object in which the bytes of each image lie, in the order of the rows."""

    def check(self, store: Store, part: Part) -> CheckResult:
        """Read the part whole, and decode each of its images. Raises TryAgain where storage fails."""


PART_FORMATS: dict[str, type[ParquetFormat | WebDatasetFormat | FilesFormat]] = {
    "parquet": ParquetFormat,
    "webdataset": WebDatasetFormat,
    "files": FilesFormat,
}


def recover_parts(store: Store, layout: PartFormat, missing: Sequence[Part]) -> list[Part]:
    """Those of the missing parts that must be made: where nothing but the commit was, it is there now."""
    with ThreadPoolExecutor(CHECKERS) as pool:
        adopted = list(pool.map(lambda part: layout.recover(store, part), missing))
    return [part for part, made in zip(missing, adopted, strict=True) if not made]


def has_metadata_tables(job: Job) -> bool:
    """Whether readers of the job's format want tables beside the images."""
    return job.format == "files"


def metadata_tables(job: Job, manifest: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Tables beside the images of a shard that readers of the format want, each with its key, from its manifest."""
    return imagefolder_metadata(manifest) if has_metadata_tables(job) else iter(())


def format_of(job: Job) -> PartFormat:
    """The format of a job's parts."""
    return PART_FORMATS[job.format](job.encoding)
