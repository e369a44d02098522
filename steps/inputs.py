"""The pictures of the rows that are drawn next: read and made ready in threads, a few of them ahead."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from PIL import Image as Pillow

from imagekiln.steps import names
from imagekiln.steps.cells import PICTURES
from imagekiln.steps.errors import BadInput
from imagekiln.steps.input_picture import fitted, opened
from imagekiln.steps.rows import ImageRow
from imagekiln.steps.storage import Store

READERS = 4
AHEAD = 32
KEPT = 2 * AHEAD
SEEN = {"reference_image"}  # what looks at it scales it itself
GREY = {"mask_image"}
Seen: TypeAlias = Any  # transformers' processors have no types


@dataclass(frozen=True, slots=True)
class Wanted:
    """One picture as one row needs it, in pixels; without a size, as an image encoder sees it."""

    sha256: str
    grey: bool
    size: tuple[int, int] | None


class Inputs:
    """Pictures of a run, by row and column. Not for use from two threads at once."""

    def __init__(self, store: Store, look: Callable[[Pillow.Image], Seen] | None = None) -> None:
        """Take the run's own folder, and not that of a round; and what makes of a reference all that is kept of it.

        A reference has any size. Whole, those that are at hand would take gigabytes.
        """
        self._store = store
        self._look = look
        self._pool = ThreadPoolExecutor(READERS)
        self._expected: Iterator[Wanted] = iter(())
        self._ahead: set[Wanted] = set()
        self._held: OrderedDict[Wanted, Future[Seen]] = OrderedDict()

    def expect(self, rows: Iterable[ImageRow]) -> None:
        """Say which rows will be asked for, about in this order."""
        self._expected = (each for row in rows for each in _all_wanted(row))
        self._ahead.clear()

    def passed(self, rows: Iterable[ImageRow]) -> None:
        """Say which rows need no more, whether all of theirs was asked for or not: later ones take their places."""
        if done := {each for row in rows for each in _all_wanted(row)}:
            self._ahead -= done
            self._look_ahead()

    def of(self, row: ImageRow, column: str) -> Pillow.Image:
        """The row's picture in RGB, a mask in grey, of the image's size.

        Raises Missing, BadInput where the file is not the one that was planned, TryAgain, and what decoding raises.
        """
        picture: Pillow.Image = self._ready(wanted(row, column))
        return picture

    def seen(self, asked: Wanted) -> Seen:
        """A reference as it is kept. Raises the same."""
        return self._ready(asked)

    def _ready(self, asked: Wanted) -> Seen:
        future = self._reading(asked)
        self._look_ahead()
        try:
            return future.result()
        except BaseException:
            self._held.pop(asked, None)
            raise

    def _look_ahead(self) -> None:
        while len(self._ahead) < AHEAD and (after := next(self._expected, None)) is not None:
            self._ahead.add(after)
            self._reading(after)

    def _reading(self, asked: Wanted) -> "Future[Seen]":
        if asked not in self._held:
            self._held[asked] = self._pool.submit(self._made, asked)
        self._held.move_to_end(asked)
        while len(self._held) > KEPT:
            self._held.popitem(last=False)
        return self._held[asked]

    def _made(self, asked: Wanted) -> Seen:
        key = names.input_picture(asked.sha256)
        content = self._store.read(key)
        if hashlib.sha256(content).hexdigest() != asked.sha256:
            raise BadInput(f"{self._store.at(key)}: is not the picture that was planned. Restore it.")
        picture = opened(content)
        if asked.size is None:
            return self._look(picture) if self._look else picture
        picture = fitted(picture, *asked.size)
        return picture.convert("L") if asked.grey else picture


def wanted(row: ImageRow, column: str) -> Wanted:
    """How a row needs the picture of a column."""
    size = None if column in SEEN else (row.pixels.width, row.pixels.height)
    return Wanted(getattr(row.pixels, column), column in GREY, size)


def _all_wanted(row: ImageRow) -> Iterator[Wanted]:
    return (wanted(row, name) for name in PICTURES if getattr(row.pixels, name))
