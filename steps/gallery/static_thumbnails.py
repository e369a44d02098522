"""The thumbnails of a block of images, one behind the other in a file that a page reads in parts.

A file begins with the lengths of its thumbnails, four bytes each, so that one that was made before
need not be made again to know where they are.
"""

import struct
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from imagekiln.steps.dataset.image_ranges import read_images
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.gallery.static_files import THUMBNAILS_FOLDER, content_name
from imagekiln.steps.imaging.codecs import decode_image, encode_thumbnail
from imagekiln.steps.runs.tables import DAMAGE_ERRORS, damage_error
from imagekiln.steps.storage.store import Store

SIDE = 256
READ_AT_ONCE = 16  # images, whose files are in memory together
LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class ThumbnailFile:
    """A file of thumbnails: that of row N lies between `offsets[N]` and `offsets[N + 1]`.

    Rows without an image have nothing in it. `problems` are sentences on images that are damaged.
    """

    name: str
    offsets: tuple[int, ...]
    problems: tuple[str, ...] = ()


def put_thumbnails(
    source: Store, target: Store, rows: pa.Table, readers: Executor
) -> ThumbnailFile | None:
    """Write the thumbnails of these rows of a manifest, unless they are there.

    None where no image is ok. Raises TryAgain where storage fails.
    """
    digests = _digests(rows)
    if not any(digests):
        return None
    name = _file_name(digests)
    lengths = _read_lengths(target, name, len(digests))
    if lengths is not None:
        return ThumbnailFile(name, _offsets(lengths))

    thumbnails, problems = _make_thumbnails(source, rows, readers)
    if problems:  # what is restored later must get another name
        name = _file_name([*digests, *problems])
    lengths = [len(content) for content in thumbnails]
    header = struct.pack(f"<{len(lengths)}I", *lengths)
    target.replace(f"{THUMBNAILS_FOLDER}/{name}", header + b"".join(thumbnails))
    return ThumbnailFile(name, _offsets(lengths), tuple(problems))


def _digests(rows: pa.Table) -> list[str | None]:
    """The hash of each image's file; None of images that have none."""
    digests = rows["sha256"].to_pylist()
    statuses = rows["status"].to_pylist()
    return [
        digest if status == "ok" else None for digest, status in zip(digests, statuses, strict=True)
    ]


def _file_name(decisive: Sequence[str | None]) -> str:
    text = "\n".join([f"thumbnails of {SIDE} pixels", *(part or "" for part in decisive)])
    return f"{content_name(text.encode())}.bin"


def _read_lengths(target: Store, name: str, count: int) -> list[int] | None:
    try:
        header = target.read_prefix(f"{THUMBNAILS_FOLDER}/{name}", count * LENGTH_BYTES)
    except Missing:
        return None
    if len(header) < count * LENGTH_BYTES:
        return None
    return list(struct.unpack(f"<{count}I", header))


def _offsets(lengths: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(lengths, initial=len(lengths) * LENGTH_BYTES))


def _make_thumbnails(
    source: Store, rows: pa.Table, readers: Executor
) -> tuple[list[bytes], list[str]]:
    """The thumbnail of each row, empty where there is none, and what is wrong with which image."""
    thumbnails = [b""] * rows.num_rows
    problems: list[str] = []
    statuses = rows["status"].to_pylist()
    ok = [place for place, status in enumerate(statuses) if status == "ok"]
    for first in range(0, len(ok), READ_AT_ONCE):
        places = ok[first : first + READ_AT_ONCE]
        contents = _read(source, rows, places, readers)
        for place, content in zip(places, contents, strict=True):
            thumbnail = _make_thumbnail(source, rows, place, content)
            if isinstance(thumbnail, BadInput):
                problems.append(str(thumbnail))
            else:
                thumbnails[place] = thumbnail
    return thumbnails, problems


def _read(
    source: Store, rows: pa.Table, places: Sequence[int], readers: Executor
) -> list[bytes | BadInput]:
    """The stored files of these rows; one that is damaged costs itself alone."""
    try:
        chosen = rows.take(pa.array(places))
        return [*read_images(source, chosen, readers)]
    except BadInput as error:
        if len(places) == 1:
            return [error]
    return [_read(source, rows, [place], readers)[0] for place in places]


def _make_thumbnail(
    source: Store, rows: pa.Table, place: int, content: bytes | BadInput
) -> bytes | BadInput:
    if isinstance(content, BadInput):
        return content
    try:
        pixels = decode_image(content)
        return encode_thumbnail(pixels, SIDE)
    except DAMAGE_ERRORS as error:
        part = str(rows["part"][place])
        return damage_error(source.uri_of(part), error)
