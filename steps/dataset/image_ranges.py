"""Reading the bytes of many images in few requests: neighbors in an object are read together."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import chain

import pyarrow as pa

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.storage.store import Store

MAX_GAP_BYTES = 2**16  # read in vain, rather than with another request
MAX_RANGE_BYTES = 2**24  # so that the threads share what is large

LOCATION_COLUMNS = ("image_id", "part", "byte_offset", "byte_size", "sha256")


@dataclass(frozen=True, slots=True)
class ImageLocation:
    """Where the bytes of an image are; `index` is its place among those that are read."""

    index: int
    image_id: str
    part: str
    offset: int
    size: int
    sha256: str

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.size


def read_images(store: Store, rows: pa.Table, pool: Executor) -> list[bytes]:
    """The bytes of the images of these rows, which are ok, in their order.

    Raises Missing, TryAgain, or BadInput where they are not those that the manifest describes.
    """
    columns = [rows[name].to_pylist() for name in LOCATION_COLUMNS]
    places = [
        ImageLocation(index, *location) for index, location in enumerate(zip(*columns, strict=True))
    ]
    places.sort(key=lambda place: (place.part, place.offset))
    contents = [b""] * len(places)
    read = pool.map(partial(_read_range, store), _group_neighbors(places))
    for index, content in chain.from_iterable(read):
        contents[index] = content
    return contents


def _group_neighbors(places: Sequence[ImageLocation]) -> Iterator[list[ImageLocation]]:
    """The places, which are sorted, in groups that one request reads."""
    group: list[ImageLocation] = []
    for place in places:
        if group and not _is_neighbor(group, place):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _is_neighbor(group: Sequence[ImageLocation], place: ImageLocation) -> bool:
    is_near = place.offset - group[-1].end <= MAX_GAP_BYTES
    is_small = place.end - group[0].offset <= MAX_RANGE_BYTES
    return place.part == group[0].part and is_near and is_small


def _read_range(store: Store, group: Sequence[ImageLocation]) -> list[tuple[int, bytes]]:
    start = group[0].offset
    length = group[-1].end - start
    first = group[0]
    try:
        with store.open(first.part) as file:
            file.seek(start)
            content = memoryview(file.read(length))
    except Missing as error:
        raise Missing(
            f"{store.uri_of(first.part)}: is missing, and image {first.image_id} is in it. "
            "Restore it, or verify the run, which says how to generate it again."
        ) from error
    images: list[tuple[int, bytes]] = []
    for place in group:
        image = bytes(content[place.offset - start : place.end - start])
        if hashlib.sha256(image).hexdigest() != place.sha256:
            raise BadInput(
                f"{store.uri_of(place.part)}: image {place.image_id} has other bytes than the "
                "manifest says. Restore the object, or verify the run, which says how to generate "
                "it again."
            )
        images.append((place.index, image))
    return images
