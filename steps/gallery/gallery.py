"""A gallery: the runs, their index, and what the page asks of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import BoundedSemaphore, Thread

from imagekiln.steps.gallery.images import GalleryImages, GalleryRow, ImageFile
from imagekiln.steps.gallery.index import GalleryIndex, GalleryRuns, find_gallery_runs
from imagekiln.steps.gallery.queries import (
    OPERATORS,
    Condition,
    PageQuery,
    Tile,
    count_images,
    find_candidates,
    find_neighbors,
    find_page,
    find_position,
    mean_by_run,
)
from imagekiln.steps.maintain.run_list import RunOverview, describe_runs
from imagekiln.steps.runs.image import STATUSES
from imagekiln.steps.runtime.concurrency import SingleFlightCache
from imagekiln.steps.storage.local import temporary_folder

FIRST_ROWS_SECONDS = 30.0
Figures = dict[str, object]
QUERIES = 2  # at once: each uses all of DuckDB's threads


@dataclass(frozen=True, slots=True)
class GalleryState:
    """What there is to choose from, and how much is indexed.

    `runs` have their `run_id` and number of `images`, `columns` their `name`, `kind` and what they
    may be asked, `operators`.
    """

    uri: str
    runs: tuple[Figures, ...]
    columns: tuple[Figures, ...]
    statuses: tuple[str, ...]
    flags: tuple[str, ...]
    scores: tuple[str, ...]
    images: int
    indexed: int
    is_complete: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImageDetails:
    """An image with its row, the candidates of its place, and the images that look most like it."""

    number: int
    row: GalleryRow
    candidates: list[Tile]
    neighbors: list[Tile]


class Gallery:
    """Answers the page. Threads may share it."""

    def __init__(self, runs: GalleryRuns, index: GalleryIndex) -> None:
        """Take the runs, and their index, which may still be filled."""
        self._runs = runs
        self._index = index
        self._images = GalleryImages(runs)
        self._queries = BoundedSemaphore(QUERIES)
        self._nights = SingleFlightCache[int, list[Figures]](lambda _: _read_nights(runs), 1)

    def state(self) -> GalleryState:
        """What there is to choose from."""
        runs, progress = self._runs, self._index.progress
        plans = [run.run.plan for run in runs.runs]
        flags = dict.fromkeys(flag for plan in plans for flag in plan.job.marking_gates)
        scores = dict.fromkeys(score for plan in plans for score in plan.job.scores)
        return GalleryState(
            uri=runs.uri,
            runs=tuple(
                {"run_id": run.run_id, "images": sum(run.source.shard_images)} for run in runs.runs
            ),
            columns=tuple(
                {"name": column.name, "kind": column.kind, "operators": OPERATORS[column.kind]}
                for column in self._index.columns.values()
            ),
            statuses=STATUSES,
            flags=tuple(flags),
            scores=tuple(scores),
            images=progress.images,
            indexed=progress.indexed,
            is_complete=progress.is_complete,
            problems=tuple(progress.problems),
        )

    def page(self, query: PageQuery) -> list[Tile]:
        """A page of images. Raises BadInput where the query fits no column."""
        self._index.wait_for_rows(FIRST_ROWS_SECONDS)
        with self._queries:
            return find_page(self._index, query)

    def count(self, where: tuple[Condition, ...]) -> dict[str, int]:
        """How many images of those that are indexed fulfill the conditions, by status."""
        with self._queries:
            return count_images(self._index, where)

    def details(self, run_id: str, image_id: str, number: int | None) -> ImageDetails:
        """An image with its neighbors. `number` says where to look first. Raises Missing."""
        row_number, position = find_position(self._index, run_id, image_id, number)
        row = self._images.read_row(position, image_id)
        with self._queries:
            candidates = find_candidates(self._index, position)
            neighbors = find_neighbors(self._index, row_number)
        return ImageDetails(row_number, row, candidates, neighbors)

    def file(
        self, run_id: str, image_id: str, number: int | None, *, thumbnail: bool = False
    ) -> ImageFile:
        """The file of an image, or a small JPEG of it. Raises Missing, BadInput, TryAgain."""
        _, position = find_position(self._index, run_id, image_id, number)
        if thumbnail:
            return self._images.read_thumbnail(position, image_id)
        return self._images.read_file(position, image_id)

    def trends(self, column: str | None) -> list[Figures]:
        """The runs, oldest first, with the mean of a column of numbers. Raises BadInput.

        `rate` is in images that are ok per device-hour, `not_ok` a share.
        """
        means: dict[str, float | None] = {}
        if column is not None:
            with self._queries:
                means = mean_by_run(self._index, column)
        return [night | {"mean": means.get(str(night["run_id"]))} for night in self._nights(0)]


def _read_nights(runs: GalleryRuns) -> list[Figures]:
    """The figures of all runs that have some, oldest first. Raises TryAgain."""
    oldest_first = [run.run for run in runs.runs[::-1]]
    return [asdict(run) | _shares(run) for run in describe_runs(oldest_first)]


def _shares(run: RunOverview) -> Figures:
    return {
        "rate": run.ok / run.device_hours if run.ok is not None and run.device_hours else None,
        "not_ok": run.not_ok / run.images if run.not_ok is not None and run.images else None,
    }


@contextmanager
def open_gallery(uri: str) -> Iterator[Gallery]:
    """The gallery of a run or an output, whose index is filled in a thread during the block.

    Raises Missing where there are no runs, BadInput, TryAgain.
    """
    runs = find_gallery_runs(uri)
    with temporary_folder("imagekiln-gallery-") as folder:
        index = GalleryIndex(runs, Path(folder))
        thread = Thread(target=index.fill, name="gallery-index", daemon=True)
        thread.start()
        try:
            yield Gallery(runs, index)
        finally:
            index.stop()
            thread.join()
            index.close()
