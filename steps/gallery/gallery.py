"""The backend of the gallery page, which reads runs, their manifests and their index."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import BoundedSemaphore, Thread

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.gallery.index import GalleryIndex, GalleryRuns, Position, find_gallery_runs
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
from imagekiln.steps.imaging.codecs import encode_thumbnail
from imagekiln.steps.job.output import mime_type
from imagekiln.steps.maintain.run_list import describe_runs
from imagekiln.steps.runs.image import STATUSES
from imagekiln.steps.runs.readback import decode_stored_image, read_image_bytes
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runs.run import Run, read_shard_columns, read_shard_manifest
from imagekiln.steps.runtime.concurrency import SingleFlightCache
from imagekiln.steps.runtime.sanitize import format_command, truncate_text
from imagekiln.steps.storage.local import temporary_folder

LOCATION_COLUMNS = (
    *("image_id", "status", "width", "height"),
    *("part", "byte_offset", "byte_size", "sha256"),
)
CACHED_MANIFESTS = 4  # images of a page are mostly from one shard
THUMBNAIL_SIDE = 320
DECODERS = 2  # concurrent decoders, since an image may have 16 million pixels
MAX_VALUE_CHARS = 20_000
Figures = dict[str, object]
QUERIES = 2  # concurrent queries, since each uses all of DuckDB's threads


@dataclass(frozen=True, slots=True)
class ImageFile:
    """The bytes of an image file, and their media type."""

    content: bytes
    media_type: str


def _take_row(manifest: pa.Table, position: Position, image_id: str) -> dict[str, object]:
    (row,) = to_rows(manifest.slice(position.row, 1))
    if row["image_id"] != image_id:
        raise BadInput("The run was aggregated again meanwhile. Start the gallery again.")
    return row


def _format_value(value: object) -> str | None:
    if value is None:
        return None
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return truncate_text(text, MAX_VALUE_CHARS)


@dataclass(frozen=True, slots=True)
class GalleryState:
    """State of the gallery: its runs, its columns with their operators, and index progress."""

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
    """Details of an image: its manifest row, the command that reproduces it, and similar images.

    `candidates` are all candidates for the same image, including itself.
    """

    values: dict[str, str | None]
    command: str
    candidates: list[Tile]
    neighbors: list[Tile]


class Gallery:
    """The gallery of one or several runs. It is thread-safe."""

    def __init__(self, runs: GalleryRuns, index: GalleryIndex) -> None:
        """Create a gallery of runs. Another thread may still fill the index."""
        self._runs = runs
        self._index = index
        self._locations = SingleFlightCache(self._read_locations, CACHED_MANIFESTS)
        self._decoders = BoundedSemaphore(DECODERS)
        self._queries = BoundedSemaphore(QUERIES)
        self._figures = SingleFlightCache[int, list[Figures]](lambda _: _read_figures(runs), 1)

    def state(self) -> GalleryState:
        """Return the state of the gallery."""
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
        """Return a page of images. Raises BadInput if the query does not fit the columns."""
        with self._queries:
            return find_page(self._index, query)

    def count(self, where: tuple[Condition, ...]) -> dict[str, int]:
        """Count indexed images that satisfy the conditions, by status."""
        with self._queries:
            return count_images(self._index, where)

    def details(self, number: int, image_id: str) -> ImageDetails:
        """Return an image with its row, its candidates, and the most similar images.

        Raises Missing, BadInput if the manifest has changed or is damaged, TryAgain.
        """
        position = find_position(self._index, number, image_id)
        run = self._runs.runs[position.run].run
        manifest = read_shard_manifest(run.at_head(), position.shard)
        row = _take_row(manifest, position, image_id)
        with self._queries:
            candidates = find_candidates(self._index, position)
            neighbors = find_neighbors(self._index, number)
        values = {name: _format_value(value) for name, value in row.items()}
        command = format_command("reproduce", run.store.uri, image_id)
        return ImageDetails(values, command, candidates, neighbors)

    def file(self, number: int, image_id: str) -> ImageFile:
        """Read the stored file of an image that is ok. Raises the same errors as `details`."""
        run, location = self._find_location(number, image_id)
        content = read_image_bytes(run.store, location)
        return ImageFile(content, mime_type(run.plan.job.encoding))

    def thumbnail(self, number: int, image_id: str) -> ImageFile:
        """Create a JPEG thumbnail of an image that is ok. Raises the same errors as `details`."""
        run, location = self._find_location(number, image_id)
        content = read_image_bytes(run.store, location)
        with self._decoders:
            pixels = decode_stored_image(run.store, location, content)
            return ImageFile(encode_thumbnail(pixels, THUMBNAIL_SIDE), "image/jpeg")

    def _find_location(self, number: int, image_id: str) -> tuple[Run, dict[str, object]]:
        position = find_position(self._index, number, image_id)
        manifest = self._locations((position.run, position.shard))
        row = _take_row(manifest, position, image_id)
        status = row["status"]
        if status != "ok":
            raise BadInput(f"{image_id}: has no file, since its status is {status}.")
        run = self._runs.runs[position.run].run
        return run, row

    def _read_locations(self, shard: tuple[int, int]) -> pa.Table:
        run_number, number = shard
        run = self._runs.runs[run_number].run
        return read_shard_columns(run.at_head(), number, LOCATION_COLUMNS)

    def trends(self, column: str | None) -> list[Figures]:
        """Return the runs, oldest first, with their means of a numeric column. Raises BadInput."""
        means: dict[str, float | None] = {}
        if column is not None:
            with self._queries:
                means = mean_by_run(self._index, column)
        return [run | {"mean": means.get(str(run["run_id"]))} for run in self._figures(0)]


def _read_figures(runs: GalleryRuns) -> list[Figures]:
    oldest_first = [run.run for run in runs.runs[::-1]]
    overviews = describe_runs(oldest_first)
    return [asdict(overview) for overview in overviews]


@contextmanager
def open_gallery(uri: str) -> Iterator[Gallery]:
    """Open the gallery of a run or an output, and fill its index in a background thread.

    Raises Missing, BadInput.
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
