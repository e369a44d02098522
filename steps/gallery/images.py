"""One image of a gallery: its row, its bytes and its thumbnail, by its place in a manifest."""

from dataclasses import dataclass
from threading import BoundedSemaphore

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.gallery.index import GalleryRuns, Position
from imagekiln.steps.imaging.codecs import decode_image, encode_thumbnail
from imagekiln.steps.job.output import mime_type
from imagekiln.steps.runs.readback import read_image_bytes
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runs.run import read_shard_columns, read_shard_manifest
from imagekiln.steps.runs.tables import DAMAGE_ERRORS, damage_error
from imagekiln.steps.runtime.concurrency import SingleFlightCache
from imagekiln.steps.runtime.sanitize import format_command, truncate_text

LOCATION_COLUMNS = ("image_id", "status", "part", "byte_offset", "byte_size", "sha256")
CACHED_MANIFESTS = 4  # the images of a page are mostly of one shard
THUMBNAIL_SIDE = 320
DECODERS = 2  # at once, since an image may have 16 million pixels
MAX_VALUE_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class GalleryRow:
    """The row of an image in its manifest, as text, and the command that draws it again."""

    run: str
    image_id: str
    status: str
    values: dict[str, str | None]
    command: str


@dataclass(frozen=True, slots=True)
class ImageFile:
    """The bytes of an image file, and their media type."""

    content: bytes
    media_type: str


class GalleryImages:
    """Reads images of runs by their positions. Threads may share it."""

    def __init__(self, runs: GalleryRuns) -> None:
        """Begin without any manifest in memory."""
        self._runs = runs
        self._locations = SingleFlightCache(self._read_locations, CACHED_MANIFESTS)
        self._decoders = BoundedSemaphore(DECODERS)

    def read_row(self, position: Position, image_id: str) -> GalleryRow:
        """The whole row. Raises BadInput where the manifest is another one or damaged, TryAgain."""
        run = self._runs.runs[position.run]
        manifest = read_shard_manifest(run.run.at_head(), position.shard)
        row = _take_row(manifest, position, image_id)
        return GalleryRow(
            run=run.run_id,
            image_id=image_id,
            status=str(row["status"]),
            values={name: _format_value(value) for name, value in row.items()},
            command=format_command("reproduce", run.run.store.uri, image_id),
        )

    def read_file(self, position: Position, image_id: str) -> ImageFile:
        """The stored file of an image that is ok. Raises as `read_row` does."""
        content, _ = self._read_content(position, image_id)
        encoding = self._runs.runs[position.run].run.plan.job.encoding
        return ImageFile(content, mime_type(encoding))

    def read_thumbnail(self, position: Position, image_id: str) -> ImageFile:
        """A small JPEG of an image that is ok. Raises as `read_file` does."""
        content, part = self._read_content(position, image_id)
        with self._decoders:
            try:
                pixels = decode_image(content)
            except DAMAGE_ERRORS as error:
                raise damage_error(part, error) from error
            return ImageFile(encode_thumbnail(pixels, THUMBNAIL_SIDE), "image/jpeg")

    def _read_content(self, position: Position, image_id: str) -> tuple[bytes, str]:
        """The stored file of an image that is ok, and the URI of its object.

        Images move if others of their part are forgotten: then the manifest is read again.
        """
        store = self._runs.runs[position.run].run.store
        location = self._find_location(position, image_id)
        try:
            content = read_image_bytes(store, location)
        except BadInput:
            self._locations.drop((position.run, position.shard))
            location = self._find_location(position, image_id)
            content = read_image_bytes(store, location)
        return content, store.uri_of(str(location["part"]))

    def _find_location(self, position: Position, image_id: str) -> dict[str, object]:
        manifest = self._locations((position.run, position.shard))
        row = _take_row(manifest, position, image_id)
        if row["status"] != "ok":
            raise BadInput(f"{image_id}: has no file, since its status is {row['status']}.")
        return row

    def _read_locations(self, shard: tuple[int, int]) -> pa.Table:
        run_number, number = shard
        run = self._runs.runs[run_number]
        return read_shard_columns(run.run.at_head(), number, LOCATION_COLUMNS)


def _take_row(manifest: pa.Table, position: Position, image_id: str) -> dict[str, object]:
    (row,) = to_rows(manifest.slice(position.row, 1))
    if row["image_id"] != image_id:
        raise BadInput("The run was aggregated again meanwhile. Start the gallery again.")
    return row


def _format_value(value: object) -> str | None:
    """A value as text, cut if it is very long."""
    if value is None:
        return None
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return truncate_text(text, MAX_VALUE_CHARS)
