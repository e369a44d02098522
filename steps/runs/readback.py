"""Reader of stored images, by the object and the offset in their manifest rows.

Neighboring images of an object are read with one request.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.imaging.codecs import MAX_DECODED_PIXELS, RGB, decode_image
from imagekiln.steps.runs.tables import DAMAGE_ERRORS, damage_error
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.store import Store

MAX_GAP_BYTES = 2**16  # read and discarded, instead of sending another request
MAX_RANGE_BYTES = 2**24  # so that threads share large reads
LOCATION_COLUMNS = ("image_id", "part", "byte_offset", "byte_size", "sha256")


@dataclass(frozen=True, slots=True)
class ImageLocation:
    """Location of an image's bytes. `index` is its position among the requested images."""

    index: int
    image_id: str
    part: str
    offset: int
    size: int
    sha256: str

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.offset + self.size


def read_image_bytes(store: Store, row: Mapping[str, Any]) -> bytes:
    """Read the stored bytes of an image that is ok. Raises as `read_images` does."""
    location = ImageLocation(0, *(row[name] for name in LOCATION_COLUMNS))
    return _read_range(store, [location])[0]


def read_image_pixels(store: Store, row: Mapping[str, Any]) -> RGB:
    """Read the pixels of an image that is ok, as RGB uint8 (height, width, 3).

    Raises Missing, TryAgain, or BadInput if the image does not decode.
    """
    return decode_stored_image(store, row, read_image_bytes(store, row))


def decode_stored_image(store: Store, row: Mapping[str, Any], content: bytes) -> RGB:
    """Decode the bytes of an image. Raises BadInput if it does not decode."""
    try:
        return decode_image(content, most=max(MAX_DECODED_PIXELS, row["width"] * row["height"]))
    except DAMAGE_ERRORS as error:
        raise damage_error(store.uri_of(row["part"]), error) from error


def read_input_image(store: Store, key: str) -> bytes:
    """Read the input image at a key that ends in its SHA-256.

    Raises BadInput if it is not the planned image, Missing, TryAgain.
    """
    content = store.read(key)
    if not key.endswith(hashlib.sha256(content).hexdigest()):
        raise BadInput(f"{store.uri_of(key)}: is not the planned image. Restore it.")
    return content


def read_images(store: Store, rows: pa.Table, pool: Executor) -> list[bytes]:
    """Read the bytes of these images, which are ok, in their order.

    Raises Missing, TryAgain, or BadInput if the bytes do not match the manifest.
    """
    columns = [rows[name].to_pylist() for name in LOCATION_COLUMNS]
    places = []
    for index, location in enumerate(zip(*columns, strict=True)):
        place = ImageLocation(index, *location)
        places.append(place)
    places.sort(
        key=lambda place: (place.part, place.offset),
    )
    groups = _group_neighbors(places)
    contents: dict[int, bytes] = {}
    for images in pool.map(partial(_read_range, store), groups):
        contents |= images
    indices = range(len(places))
    return [contents[index] for index in indices]


def _group_neighbors(places: Sequence[ImageLocation]) -> Iterator[list[ImageLocation]]:
    """Group sorted locations that are read with one request."""
    group: list[ImageLocation] = []
    for place in places:
        if group and not _is_neighbor(group, place):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _is_neighbor(group: Sequence[ImageLocation], place: ImageLocation) -> bool:
    first = group[0]
    last = group[-1]
    gap = place.offset - last.end
    size = place.end - first.offset
    is_near = gap <= MAX_GAP_BYTES
    is_small = size <= MAX_RANGE_BYTES
    return place.part == first.part and is_near and is_small


def _read_range(store: Store, group: Sequence[ImageLocation]) -> dict[int, bytes]:
    """Read a group of images with one request, by their index."""
    first = group[0]
    try:
        with store.open(first.part) as file:
            file.seek(first.offset)
            content = file.read(group[-1].end - first.offset)
    except Missing as error:
        raise Missing(_describe_loss(store, first, "is missing")) from error
    images = {}
    for place in group:
        start = place.offset - first.offset
        image = content[start : start + place.size]
        if hashlib.sha256(image).hexdigest() != place.sha256:
            raise BadInput(_describe_loss(store, place, "has other bytes than were written"))
        images[place.index] = image
    return images


def _describe_loss(store: Store, place: ImageLocation, problem: str) -> str:
    command = format_command("verify", store.uri)
    return (
        f"{store.uri_of(place.part)}: {problem}: image {place.image_id} is lost. Restore it, or "
        f"type `{command}`, which says how to generate it again."
    )
