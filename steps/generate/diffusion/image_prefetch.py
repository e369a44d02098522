"""The pictures of the rows that are drawn next: read and made ready in threads, a few of them ahead."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from PIL import Image as Pillow

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.input_images import open_input_image, resize_to_cover
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS, ImageRow
from imagekiln.steps.runs.keys import input_image_key
from imagekiln.steps.storage.store import Store

READERS = 4
PREFETCH_IMAGES = 32
MAX_CACHED_IMAGES = 2 * PREFETCH_IMAGES
REFERENCE_COLUMNS = {"reference_image"}  # what looks at it scales it itself
MASK_COLUMNS = {"mask_image"}
Preprocessed: TypeAlias = Any  # transformers' processors have no types


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """One picture as one row needs it, in pixels; without a size, as an image encoder sees it."""

    sha256: str
    grayscale: bool
    size: tuple[int, int] | None


class ImagePrefetcher:
    """Pictures of a run, by row and column. Not for use from two threads at once."""

    def __init__(
        self, store: Store, look: Callable[[Pillow.Image], Preprocessed] | None = None
    ) -> None:
        """Take the run's own folder, and not that of a round; and what makes of a reference all that is kept of it.

        A reference has any size. Whole, those that are at hand would take gigabytes.
        """
        self._store = store
        self._look = look
        self._pool = ThreadPoolExecutor(READERS)
        self._expected: Iterator[ImageRequest] = iter(())
        self._ahead: set[ImageRequest] = set()
        self._held: OrderedDict[ImageRequest, Future[Preprocessed]] = OrderedDict()

    def set_upcoming(self, rows: Iterable[ImageRow]) -> None:
        """Say which rows will be asked for, about in this order."""
        self._expected = (each for row in rows for each in _image_requests(row))
        self._ahead.clear()

    def release(self, rows: Iterable[ImageRow]) -> None:
        """Say which rows need no more, whether all of theirs was asked for or not: later ones take their places."""
        if done := {each for row in rows for each in _image_requests(row)}:
            self._ahead -= done
            self._prefetch()

    def get_image(self, row: ImageRow, column: str) -> Pillow.Image:
        """The row's picture in RGB, a mask in grey, of the image's size.

        Raises Missing, BadInput where the file is not the one that was planned, TryAgain, and what decoding raises.
        """
        picture: Pillow.Image = self._wait_for(image_request(row, column))
        return picture

    def get_preprocessed(self, asked: ImageRequest) -> Preprocessed:
        """A reference as it is kept. Raises the same."""
        return self._wait_for(asked)

    def _wait_for(self, asked: ImageRequest) -> Preprocessed:
        future = self._submit(asked)
        self._prefetch()
        try:
            return future.result()
        except BaseException:
            self._held.pop(asked, None)
            raise

    def _prefetch(self) -> None:
        while (
            len(self._ahead) < PREFETCH_IMAGES and (after := next(self._expected, None)) is not None
        ):
            self._ahead.add(after)
            self._submit(after)

    def _submit(self, asked: ImageRequest) -> "Future[Preprocessed]":
        if asked not in self._held:
            self._held[asked] = self._pool.submit(self._read_image, asked)
        self._held.move_to_end(asked)
        while len(self._held) > MAX_CACHED_IMAGES:
            self._held.popitem(last=False)
        return self._held[asked]

    def _read_image(self, asked: ImageRequest) -> Preprocessed:
        key = input_image_key(asked.sha256)
        content = self._store.read(key)
        if hashlib.sha256(content).hexdigest() != asked.sha256:
            raise BadInput(
                f"{self._store.uri_of(key)}: is not the picture that was planned. Restore it."
            )
        picture = open_input_image(content)
        if asked.size is None:
            return self._look(picture) if self._look else picture
        picture = resize_to_cover(picture, *asked.size)
        return picture.convert("L") if asked.grayscale else picture


def image_request(row: ImageRow, column: str) -> ImageRequest:
    """How a row needs the picture of a column."""
    size = None if column in REFERENCE_COLUMNS else (row.parameters.width, row.parameters.height)
    return ImageRequest(getattr(row.parameters, column), column in MASK_COLUMNS, size)


def _image_requests(row: ImageRow) -> Iterator[ImageRequest]:
    return (
        image_request(row, name) for name in INPUT_IMAGE_COLUMNS if getattr(row.parameters, name)
    )
