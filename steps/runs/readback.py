"""What was read back, and what is wrong with it: images against the plan's rows and against their own hashes."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.codecs import MAX_DECODED_PIXELS, RGB, decode_image, hash_pixels
from imagekiln.steps.runs.tables import DAMAGE_ERRORS, OUTCOME_SCHEMA, damage_error
from imagekiln.steps.storage.store import Store


def read_image_bytes(store: Store, row: Mapping[str, object]) -> bytes:
    """The stored bytes of an image that is ok. Raises Missing, BadInput, TryAgain."""
    part, offset, size = row["part"], row["offset"], row["size"]
    if not (isinstance(part, str) and isinstance(offset, int) and isinstance(size, int)):
        raise BadInput(
            f"{store.uri}: the manifest does not say where image {row['image_id']} is. Aggregate again."
        )
    with store.open(part) as file:
        file.seek(offset)
        return file.read(size)


def read_image_pixels(store: Store, row: Mapping[str, object]) -> RGB:
    """The pixels of an image that is ok, RGB uint8 (height, width, 3). Raises BadInput where they do not decode."""
    there, width, height = read_image_bytes(store, row), row["width"], row["height"]
    asked = width * height if isinstance(width, int) and isinstance(height, int) else 0
    try:
        return decode_image(there, most=max(MAX_DECODED_PIXELS, asked))
    except DAMAGE_ERRORS as error:
        raise damage_error(store.uri_of(str(row["part"])), error) from error


MAX_LISTED_ERRORS = 10
READ_BATCH_ROWS = 4
PartRow = dict[str, object]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was read back: images, those that are ok and good, and their bytes.

    `wrong` are the first sentences about what is wrong, and `wrongs` says how many there are, so that memory does not
    grow with a run in which nothing is right.
    """

    images: int = 0
    ok: int = 0
    bytes: int = 0
    errors: tuple[str, ...] = ()
    error_count: int = 0

    def __add__(self, other: "CheckResult") -> "CheckResult":
        return CheckResult(
            self.images + other.images,
            self.ok + other.ok,
            self.bytes + other.bytes,
            (self.errors + other.errors)[:MAX_LISTED_ERRORS],
            self.error_count + other.error_count,
        )


def check_failure(told: str | BadInput, images: int = 0) -> CheckResult:
    """What is wrong, in one sentence, with so many images behind it."""
    return CheckResult(images, errors=(str(told).rstrip("."),), error_count=1)


def run_check(check: Callable[[], str | None]) -> CheckResult:
    """What a check says is wrong, if anything: the sentence that it gives, or the BadInput that it raises."""
    try:
        sentence = check()
    except BadInput as error:
        return check_failure(error)
    return CheckResult() if sentence is None else check_failure(sentence)


def matches_rows(parquet: pq.ParquetFile, rows: pa.Table, before: tuple[str, ...] = ()) -> bool:
    """Whether a part says of its images what the plan says of these rows. Columns `before` these are not compared."""
    if parquet.schema_arrow.names != [*before, *rows.column_names, *OUTCOME_SCHEMA.names]:
        return False
    return bool(parquet.read(columns=rows.column_names, use_threads=False).equals(rows))


def iter_part_rows(parquet: pq.ParquetFile, before: tuple[str, ...] = ()) -> Iterator[PartRow]:
    """Each image with what the part says of it, so that few are held beside the part's own bytes."""
    columns = [*before, "image_id", "width", "height", *OUTCOME_SCHEMA.names]
    for batch in parquet.iter_batches(READ_BATCH_ROWS, columns=columns, use_threads=False):
        yield from batch.to_pylist()


def check_image_bytes(row: PartRow, content: bytes, where: str, exact: bool) -> CheckResult:
    """Compare the bytes of an image with what its row says of them.

    `exact` says that the encoding is lossless, so that what is decoded must be what was drawn.
    """
    problem = _find_problem(row, content, exact)
    return (
        check_failure(f"{where}: image {row['image_id']} {problem}")
        if problem
        else CheckResult(ok=1, bytes=len(content))
    )


def _find_problem(row: PartRow, content: bytes, exact: bool) -> str | None:
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        return "has other bytes than were written"
    width, height = row["width"], row["height"]
    try:
        rgb = decode_image(
            content, (width, height) if isinstance(width, int) and isinstance(height, int) else None
        )
    except (OSError, ValueError) as error:
        return f"does not decode ({error})"
    return (
        "has other pixels than were drawn"
        if exact and hash_pixels(rgb) != row["pixels_sha256"]
        else None
    )
