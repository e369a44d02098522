"""Input images of prompt rows. Each distinct image is read, checked and hashed once."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, NotInstalled, cut_name
from imagekiln.steps.imaging.input_images import MAX_INPUT_BYTES, ImageInspector, RejectedImage
from imagekiln.steps.job.columns import MAX_REFERENCES
from imagekiln.steps.plan.columns import Cells, decode_dictionary, is_text
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import is_remote_uri

ALLOWED_SCHEMES = {"s3", "s3a", "gs", "gcs"}
MAX_KEY_BYTES = 1024  # S3's limit
READERS = 16
MAX_KNOWN = 250_000  # images whose results are cached

ImageSink = Callable[[str, bytes], None]
ImageReader = Callable[[str, str, int], bytes]
CellKind = Literal["bytes", "name"]
ImageCell = tuple[CellKind, bytes]


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """The image of a cell: its SHA-256 and its size in pixels, or why it is rejected."""

    sha256: str | None = None
    width: int | None = None
    height: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class ReferenceCells:
    """Cells of several images: their hashes, and the size in pixels of the first image of each."""

    digests: Cells
    widths: pa.Array
    heights: pa.Array


def read_input_image(name: str, table: str, limit: int) -> bytes:
    """Read up to `limit` bytes of the image `name`, which a cell of `table` references.

    `table` is a path or URI. Relative names start at the working directory. Raises RejectedImage,
    TryAgain, NotInstalled.
    """
    folder, key = _resolve_location(name, is_remote_uri(table))
    try:
        return open_store(folder).read_prefix(key, limit)
    except NotInstalled:  # affects every row, so it is no reason to reject this one
        raise
    except BadInput as error:  # does not exist, or access is denied
        raise RejectedImage("missing") from error


def _resolve_location(name: str, is_remote_table: bool) -> tuple[str, str]:
    """Split the location of an image into its folder and key. Raises RejectedImage."""
    if len(name.encode()) > MAX_KEY_BYTES:
        raise RejectedImage("place")
    if is_remote_uri(name):
        return _resolve_object(name)
    if is_remote_table:  # a remote table must not read local files
        raise RejectedImage("place")
    path = Path(name.removeprefix("file://"))
    with suppress(OSError):  # the name is too long
        if path.is_file():  # reading a pipe or a device might never end
            return str(path.absolute().parent), path.name
    raise RejectedImage("missing")


def _resolve_object(name: str) -> tuple[str, str]:
    scheme, _, rest = name.partition("://")
    # fsspec chains file systems at `::`, which could lead from an allowed scheme to any other.
    if scheme not in ALLOWED_SCHEMES or "::" in name:
        raise RejectedImage("place")
    folder, _, key = rest.rpartition("/")
    if not folder or not key:
        raise RejectedImage("missing")
    return f"{scheme}://{folder}", key


class InputImages:
    """Reader of the images that prompt rows reference. It caches results."""

    def __init__(self, sink: ImageSink | None = None, read: ImageReader = read_input_image) -> None:
        """Create a reader that passes the hash and bytes of accepted images to `sink`.

        `sink` may receive an image more than once.
        """
        self._inspector = ImageInspector()
        self._known: dict[ImageCell, CheckedImage] = {}  # by kind and hash of the cell
        self._sink = sink
        self._read = read

    def digest_column(self, array: pa.Array, table: str) -> Cells:
        """Compute the SHA-256 of each image in a column, or its fault.

        `table` is the path or URI of the table. Raises TryAgain, NotInstalled.
        """
        return _to_cells(self._check(_read_cells(array), table))

    def digest_lists(self, array: pa.Array, table: str) -> ReferenceCells:
        """Compute the SHA-256 of the images in each list of a column, or the fault of a list.

        A cell may also hold a single image. Raises TryAgain, NotInstalled.
        """
        lists = _read_lists(array)
        cells = [cell for images in lists for cell in images]
        checked = iter(self._check(cells, table))
        rows = [_join_images([*islice(checked, len(images))]) for images in lists]
        return ReferenceCells(
            _to_cells(rows),
            pa.array([row and row.width for row in rows], pa.int64()),
            pa.array([row and row.height for row in rows], pa.int64()),
        )

    def _check(self, cells: Sequence[ImageCell | None], table: str) -> list[CheckedImage | None]:
        """Check the image of each cell. Equal cells are read once."""
        keys = [cell and (cell[0], hashlib.sha256(cell[1]).digest()) for cell in cells]
        new = {
            key: cell
            for key, cell in zip(keys, cells, strict=True)
            if cell is not None and key is not None and key not in self._known
        }
        unread = [*new.values()]
        results = map_ordered(
            lambda number: self._inspect(*unread[number], table), len(unread), READERS
        )
        self._known.update(zip(new, results, strict=True))
        checked = [key and self._known[key] for key in keys]
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        return checked

    def _inspect(self, kind: CellKind, content: bytes, table: str) -> CheckedImage:
        try:
            if kind == "name":
                content = self._read(content.decode(), table, MAX_INPUT_BYTES + 1)
            width, height = self._inspector.inspect(content)
        except UnicodeDecodeError:
            return CheckedImage(fault="missing")
        except RejectedImage as error:
            return CheckedImage(fault=error.reason)
        digest = hashlib.sha256(content).hexdigest()
        if self._sink is not None:
            self._sink(digest, content)
        return CheckedImage(digest, width, height)


def _to_cells(images: Sequence[CheckedImage | None]) -> Cells:
    return Cells(
        pa.array([image and image.sha256 for image in images], pa.string()),
        pa.array([image and image.fault for image in images], pa.string()),
    )


def _join_images(images: Sequence[CheckedImage | None]) -> CheckedImage | None:
    """Join the images of a list: their hashes, and the size of the first; or the first fault."""
    if not images:
        return None
    if len(images) > MAX_REFERENCES:
        return CheckedImage(fault="many")
    checked = [image or CheckedImage(fault="missing") for image in images]
    for image in checked:
        if image.fault is not None:
            return image
    digests = ",".join(str(image.sha256) for image in checked)
    return CheckedImage(digests, checked[0].width, checked[0].height)


def _read_cells(array: pa.Array) -> list[ImageCell | None]:
    """Return the bytes of each cell, or the name of its image if it has no bytes."""
    array = decode_dictionary(array)
    contents = names = pa.nulls(len(array))
    if pa.types.is_struct(array.type):
        contents = pc.struct_field(array, "bytes")
        names = pc.struct_field(array, "path")
    elif is_text(array.type):
        names = array
    else:
        contents = array
    contents = contents.cast(pa.large_binary())
    names = decode_dictionary(names).cast(pa.large_binary())  # may not be valid UTF-8
    return [
        ("bytes", content) if content is not None else None if name is None else ("name", name)
        for content, name in zip(contents.to_pylist(), names.to_pylist(), strict=True)
    ]


def _read_lists(array: pa.Array) -> list[Sequence[ImageCell | None]]:
    """Return the cells of each list; a single image is a list of one."""
    array = decode_dictionary(array)
    if not _is_list(array.type):
        return [_expand_names(cell) for cell in _read_cells(array)]
    cells = iter(_read_cells(array.flatten()))
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    return [[*islice(cells, length)] for length in lengths.to_pylist()]


def _expand_names(cell: ImageCell | None) -> list[ImageCell]:
    """List the images of a single cell. Text files hold lists of names in JSON."""
    if cell is None:
        return []
    kind, content = cell
    if kind == "name" and content.startswith(b"["):
        with suppress(ValueError, RecursionError):  # invalid JSON or UTF-8
            names = json.loads(content)
            if all(isinstance(name, str) for name in names):
                return [("name", name.encode(errors="replace")) for name in names]
    return [cell]


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in tests)


def require_image_type(kind: pa.DataType, where: str, *, lists: bool = False) -> None:
    """Raise BadInput if a column of this type cannot hold images, or with `lists` several."""
    if lists and _is_list(kind):
        kind = kind.value_type
    try:
        _read_cells(pa.nulls(0, kind))
    except pa.ArrowException as error:
        raise BadInput(
            f"{where} is {cut_name(str(kind))}, no picture. "
            "Write its bytes, its URI as a string, or a struct of bytes and path."
        ) from error
