"""What was read back, and what is wrong with it: images against the plan's rows and against their own hashes."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps import tables
from imagekiln.steps.codecs import decode
from imagekiln.steps.encode import pixels_hash
from imagekiln.steps.errors import BadInput

LISTED = 10
AT_ONCE = 4
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Checked:
    """What was read back: images, those that are ok and good, and their bytes.

    `wrong` are the first sentences about what is wrong, and `wrongs` says how many there are, so that memory does not
    grow with a run in which nothing is right.
    """

    images: int = 0
    ok: int = 0
    bytes: int = 0
    wrong: tuple[str, ...] = ()
    wrongs: int = 0

    def __add__(self, other: "Checked") -> "Checked":
        return Checked(
            self.images + other.images,
            self.ok + other.ok,
            self.bytes + other.bytes,
            (self.wrong + other.wrong)[:LISTED],
            self.wrongs + other.wrongs,
        )


def bad(told: str | BadInput, images: int = 0) -> Checked:
    """What is wrong, in one sentence, with so many images behind it."""
    return Checked(images, wrong=(str(told).rstrip("."),), wrongs=1)


def told(check: Callable[[], str | None]) -> Checked:
    """What a check says is wrong, if anything: the sentence that it gives, or the BadInput that it raises."""
    try:
        sentence = check()
    except BadInput as error:
        return bad(error)
    return Checked() if sentence is None else bad(sentence)


def is_of(parquet: pq.ParquetFile, rows: pa.Table, before: tuple[str, ...] = ()) -> bool:
    """Whether a part says of its images what the plan says of these rows. Columns `before` these are not compared."""
    if parquet.schema_arrow.names != [*before, *rows.column_names, *tables.OUTCOME.names]:
        return False
    return bool(parquet.read(columns=rows.column_names, use_threads=False).equals(rows))


def rows(parquet: pq.ParquetFile, before: tuple[str, ...] = ()) -> Iterator[Row]:
    """Each image with what the part says of it, so that few are held beside the part's own bytes."""
    columns = [*before, "image_id", "width", "height", *tables.OUTCOME.names]
    for batch in parquet.iter_batches(AT_ONCE, columns=columns, use_threads=False):
        yield from batch.to_pylist()


def image(row: Row, content: bytes, where: str, exact: bool) -> Checked:
    """Compare the bytes of an image with what its row says of them.

    `exact` says that the encoding is lossless, so that what is decoded must be what was drawn.
    """
    problem = _problem(row, content, exact)
    return bad(f"{where}: image {row['image_id']} {problem}") if problem else Checked(ok=1, bytes=len(content))


def _problem(row: Row, content: bytes, exact: bool) -> str | None:
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        return "has other bytes than were written"
    width, height = row["width"], row["height"]
    try:
        rgb = decode(content, (width, height) if isinstance(width, int) and isinstance(height, int) else None)
    except (OSError, ValueError) as error:
        return f"does not decode ({error})"
    return "has other pixels than were drawn" if exact and pixels_hash(rgb) != row["pixels_sha256"] else None
