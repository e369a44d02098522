"""One part read back: its images against the plan's rows and against their own hashes, a few images at a time."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps import parts, tables
from imagekiln.steps.codecs import decode
from imagekiln.steps.encode import pixels_hash
from imagekiln.steps.errors import BadInput
from imagekiln.steps.shard import Part
from imagekiln.steps.storage import Store

LISTED = 10
AT_ONCE = 4


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


def check(store: Store, part: Part, exact: bool = True) -> Checked:
    """Read a part whole, and decode each of its images. Raises TryAgain where storage fails.

    `exact` says that the encoding is lossless, so that what is decoded must be what was drawn.
    """
    where, images = store.at(part.key), part.rows.num_rows
    try:
        content = store.read(part.key)
        offsets = parts.offsets(content, where)
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
            if len(offsets) != images or not _is_of(parquet, part.rows):
                return bad(f"{where}: holds other images than were planned", images)
            rows = zip(_rows(parquet), offsets.to_pylist(), strict=True)
            return sum((_image(row, content, offset, where, exact) for row, offset in rows), Checked(images))
    except BadInput as error:
        return bad(error, images)
    except tables.DAMAGED as error:
        return bad(tables.damaged(where, error), images)


def _is_of(parquet: pq.ParquetFile, rows: pa.Table) -> bool:
    """Whether a part says of its images what the plan says of these rows."""
    if parquet.schema_arrow.names != [tables.IMAGE.name, *rows.column_names, *tables.OUTCOME.names]:
        return False
    return bool(parquet.read(columns=rows.column_names, use_threads=False).equals(rows))


def _rows(parquet: pq.ParquetFile) -> Iterator[dict[str, object]]:
    """Each image with what the part says of it, so that few are held beside the part's own bytes."""
    columns = [tables.IMAGE.name, "image_id", "width", "height", *tables.OUTCOME.names]
    for batch in parquet.iter_batches(AT_ONCE, columns=columns, use_threads=False):
        yield from batch.to_pylist()


def _image(row: dict[str, object], part: bytes, offset: int | None, where: str, exact: bool) -> Checked:
    if row["status"] != "ok":
        return Checked()
    image, size = row["image"], row["size"]
    content = image["bytes"] if isinstance(image, dict) else b""
    if offset is None or not isinstance(size, int) or content != part[offset : offset + size]:
        return bad(f"{where}: image {row['image_id']} is not where the footer says")
    problem = _problem(row, content, exact)
    return bad(f"{where}: image {row['image_id']} {problem}") if problem else Checked(ok=1, bytes=size)


def _problem(row: dict[str, object], content: bytes, exact: bool) -> str | None:
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        return "has other bytes than were written"
    width, height = row["width"], row["height"]
    try:
        rgb = decode(content, (width, height) if isinstance(width, int) and isinstance(height, int) else None)
    except (OSError, ValueError) as error:
        return f"does not decode ({error})"
    return "has other pixels than were drawn" if exact and pixels_hash(rgb) != row["pixels_sha256"] else None
