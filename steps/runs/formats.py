"""The output formats that a job chooses from: how a part's images are stored and read back.

Each format is a module here, with a class that satisfies `PartFormat` and a packed part that
satisfies `PackedPart`. Both keep two promises: the same images give the same bytes, and a store
takes and gives an object's whole `bytes`. A library that needs a path gets a temporary folder
(pods can write only under /tmp). To add a format:

1. Name and describe it in `Job.format` (`steps/job/job.py`).
2. Write `<name>_format.py` beside the others: after `webdataset_format.py` if a part is one object,
   after `files_format.py` if each image is one. The class takes the encoding and nothing else.
   - Make each object's key in `keys.py`. `PART_IMAGES_KEY_PATTERN` or `IMAGE_KEY_PATTERN` must
     match the keys of objects with images: `gc` finds leftovers by them.
   - Write the object named by `Part.key` last: it commits the part. It is Parquet and has the
     columns of `parts.py`, since the manifest, `verify` and `retry` read nothing else. Its key is
     `part_key` if it holds the images itself, else `index_key`.
   - An image must be readable as a range of bytes, from its offset on, of the object that
     `object_keys` names: store it whole and uncompressed.
   - Another attempt at the part may have created the object with the images first, and its bytes
     may differ. That object stays, so read it back, and build the index from what it holds, not
     from the images that you were given. For `recover`, which has no images at all, the object must
     say which images it holds. `parts.py` has what writes and reads an index.
   - `empty` alone replaces objects, for `forget`. Whatever is killed, called again it does the
     rest: `tests/steps/maintain/test_forget.py` kills it before each access.
   - Import a library that not every format needs in `__post_init__`, and raise NotInstalled where
     it is missing, as `steps/imaging/c2pa.py` does. The class is also made whenever shards are
     read, but planning does not notice: check it there, too, before anything is drawn. Add the
     library as an extra to `pyproject.toml` (to mypy's overrides there, too, if it has no types),
     run `make lock`, and install it in both images: aggregate and verify, which run on CPU nodes,
     read parts, too.
3. List the class in `PART_FORMATS`.
4. Say in `data_file_patterns` (`steps/aggregate/card.py`) which files `load_dataset` reads, and in
   `FORMAT_PHRASES` (`steps/aggregate/report/page.py`) what the report calls the format.
5. Test it.
   - In `tests/steps/runs/test_formats.py` (killed writers, two writers, damage), add it to
     `INDEXED_FORMATS` if it has an index, and its objects to the lists of damaged ones.
   - Add it to `FORMATS` in `tests/steps/runs/test_readers.py`, the tools that people read it with.
   - Add it to both `test_kill.py` (`tests/steps/generate/test_kill.py`, `tests/slow/test_kill.py`),
     and to the message that `tests/steps/job/test_validation_errors.py` expects.
6. Describe it in `docs/job.md` and `docs/dataset.md`.
"""

from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar, Protocol

import pyarrow as pa

from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.files_format import FilesFormat
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.integrity import CheckResult
from imagekiln.steps.runs.parquet_format import ParquetFormat
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.webdataset_format import WebDatasetFormat
from imagekiln.steps.storage.store import Store

RECOVERY_THREADS = 8


class PackedPart(Protocol):
    """A part with its images, ready to be committed."""

    @property
    def part(self) -> Part:
        """The part as it was planned."""

    def commit(self, store: Store) -> bool:
        """Write the part's objects, the one that commits it last. The first writer of each wins.

        False where another process had committed the part.
        Raises BadInput where an object exists that belongs to another plan, or is damaged.
        """


class PartFormat(Protocol):
    """How the parts of a job are stored."""

    has_image_files: ClassVar[bool]
    """Whether each image is an object of its own. Readers need tables beside these."""

    def commit_key(self, shard_number: int, part_number: int) -> str:
        """The key of the object that commits a part."""

    def pack(self, part: Part, images: Sequence[EncodedImage]) -> PackedPart:
        """Pack a part's images, in any order. The same images give the same bytes."""

    def recover(self, store: Store, part: Part) -> bool:
        """Commit a part whose images were all stored by a writer that was killed.

        False where an image is missing. Raises as `commit` does.
        """

    def object_keys(self, part: Part) -> list[str]:
        """The key of the object that holds each image, in the order of the rows."""

    def check(self, store: Store, part: Part) -> CheckResult:
        """Read the whole part, and decode each of its images. Raises TryAgain."""

    def empty(self, store: Store, part: Part, image_ids: Container[str]) -> bool:
        """Replace a part without the bytes of the images with these ids; False where none is there.

        Called again after it was killed, it does what is left. Raises BadInput on damage, TryAgain.
        """

    def has_leftovers(self, store: Store, part: Part, index_in_part: int) -> bool:
        """Whether a forgotten image left objects of its own, beside those of its part."""

    def metadata_tables(self, manifest: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """The tables beside a shard's images, each with its key, from the shard's manifest."""


PART_FORMATS: dict[str, type[ParquetFormat | WebDatasetFormat | FilesFormat]] = {
    "parquet": ParquetFormat,
    "webdataset": WebDatasetFormat,
    "files": FilesFormat,
}


def format_of(job: Job) -> PartFormat:
    """The format of a job's parts."""
    return PART_FORMATS[job.format](job.encoding)


def recover_parts(store: Store, part_format: PartFormat, missing: Sequence[Part]) -> list[Part]:
    """Commit those of the missing parts whose images are all stored; return the others."""
    unrecovered = []
    with ThreadPoolExecutor(RECOVERY_THREADS) as pool:
        results = pool.map(partial(part_format.recover, store), missing)
        for part, is_recovered in zip(missing, results, strict=True):
            if not is_recovered:
                unrecovered.append(part)
    return unrecovered


def has_metadata_tables(job: Job) -> bool:
    """Whether readers of the job's format need tables beside the images."""
    return format_of(job).has_image_files


def metadata_tables(job: Job, manifest: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The tables beside a shard's images, each with its key, from the shard's manifest."""
    return format_of(job).metadata_tables(manifest)
