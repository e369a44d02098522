"""The input images of the rows to draw, read and prepared in threads ahead of their use."""

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

READER_THREADS = 4
PREFETCH_IMAGES = 32
MAX_CACHED_IMAGES = 2 * PREFETCH_IMAGES
REFERENCE_COLUMNS = {"reference_image"}  # scaled by the image encoder itself
MASK_COLUMNS = {"mask_image"}
Preprocessed: TypeAlias = Any  # transformers' processors have no types


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An input image as one row needs it: its size in pixels, or None for an image encoder."""

    sha256: str
    grayscale: bool
    size: tuple[int, int] | None


class ImagePrefetcher:
    """The input images of a run, by row and column. Not for use from two threads at once."""

    def __init__(
        self, store: Store, preprocess: Callable[[Pillow.Image], Preprocessed] | None = None
    ) -> None:
        """Take the run's folder, and the function that prepares reference images."""
        self._store = store
        self._preprocess = preprocess
        self._pool = ThreadPoolExecutor(READER_THREADS)
        self._upcoming: Iterator[ImageRequest] = iter(())
        self._ahead: set[ImageRequest] = set()
        self._cache: OrderedDict[ImageRequest, Future[Preprocessed]] = OrderedDict()

    def set_upcoming(self, rows: Iterable[ImageRow]) -> None:
        """Take the rows whose images will be requested, in about this order."""
        self._upcoming = (request for row in rows for request in _image_requests(row))
        self._ahead.clear()

    def close(self) -> None:
        """End the threads. Images that nobody has begun to read are read by nobody."""
        self._pool.shutdown(cancel_futures=True)

    def release(self, rows: Iterable[ImageRow]) -> None:
        """Say that these rows need no more images, whether theirs were all requested or not."""
        requests = {request for row in rows for request in _image_requests(row)}
        if requests:
            self._ahead -= requests
            self._prefetch()

    def get_image(self, row: ImageRow, column: str) -> Pillow.Image:
        """The row's image in RGB, or its mask in gray, in the size of the image to draw."""
        image: Pillow.Image = self.get_preprocessed(image_request(row, column))
        return image

    def get_preprocessed(self, request: ImageRequest) -> Preprocessed:
        """A reference image as `preprocess` returned it. Raises the same."""
        future = self._submit(request)
        self._prefetch()
        try:
            return future.result()
        except BaseException:
            self._cache.pop(request, None)
            raise

    def _prefetch(self) -> None:
        while len(self._ahead) < PREFETCH_IMAGES:
            request = next(self._upcoming, None)
            if request is None:
                return
            self._ahead.add(request)
            self._submit(request)

    def _submit(self, request: ImageRequest) -> "Future[Preprocessed]":
        if request not in self._cache:
            self._cache[request] = self._pool.submit(self._read_image, request)
        self._cache.move_to_end(request)
        while len(self._cache) > MAX_CACHED_IMAGES:
            self._cache.popitem(last=False)
        return self._cache[request]

    def _read_image(self, request: ImageRequest) -> Preprocessed:
        key = input_image_key(request.sha256)
        content = self._store.read(key)
        if hashlib.sha256(content).hexdigest() != request.sha256:
            raise BadInput(f"{self._store.uri_of(key)}: is not the planned image. Restore it.")

        image = open_input_image(content)
        if request.size is None:
            return self._preprocess(image) if self._preprocess else image
        image = resize_to_cover(image, *request.size)
        return image.convert("L") if request.grayscale else image


def image_request(row: ImageRow, column: str) -> ImageRequest:
    """The image of a column as a row needs it."""
    size = None
    if column not in REFERENCE_COLUMNS:
        size = (row.parameters.width, row.parameters.height)
    return ImageRequest(getattr(row.parameters, column), column in MASK_COLUMNS, size)


def _image_requests(row: ImageRow) -> Iterator[ImageRequest]:
    for column in INPUT_IMAGE_COLUMNS:
        if getattr(row.parameters, column):
            yield image_request(row, column)
