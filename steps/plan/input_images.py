"""Input images of prompt rows. Each distinct image is read, checked and hashed once."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, NotInstalled, cut_name
from imagekiln.steps.imaging.input_images import MAX_INPUT_BYTES, ImageInspector, RejectedImage
from imagekiln.steps.plan.columns import Cells, decode_dictionary, is_text
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import is_remote_uri

ALLOWED_SCHEMES = {"s3", "s3a", "gs", "gcs"}
MAX_KEY_BYTES = 1024  # S3's limit
READERS = 16
DIGEST_CHARS = 64
MAX_KNOWN = 250_000  # images whose results are cached

ImageSink = Callable[[str, bytes], None]
ImageReader = Callable[[str, str, int], bytes]
CellKind = Literal["bytes", "name"]
ImageCell = tuple[CellKind, bytes]


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
        self._known: dict[ImageCell, str] = {}  # hashes or faults, by kind and hash of the cell
        self._sink = sink
        self._read = read

    def digest_column(self, array: pa.Array, table: str) -> Cells:
        """Compute the SHA-256 of each image in a column, or its fault.

        `table` is the path or URI of the table. Raises TryAgain, NotInstalled.
        """
        results = pa.array(self._judge(_read_cells(array), table), pa.string())
        is_digest = pc.equal(pc.binary_length(results), DIGEST_CHARS)
        null = pa.scalar(None, pa.string())
        return Cells(pc.if_else(is_digest, results, null), pc.if_else(is_digest, null, results))

    def _judge(self, cells: Sequence[ImageCell | None], table: str) -> list[str | None]:
        """Return the hash or fault of each cell. Equal cells are read once."""
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
        judged = [key and self._known[key] for key in keys]
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        return judged

    def _inspect(self, kind: CellKind, content: bytes, table: str) -> str:
        try:
            if kind == "name":
                content = self._read(content.decode(), table, MAX_INPUT_BYTES + 1)
            self._inspector.inspect(content)
        except UnicodeDecodeError:
            return "missing"
        except RejectedImage as error:
            return error.reason
        digest = hashlib.sha256(content).hexdigest()
        if self._sink is not None:
            self._sink(digest, content)
        return digest


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


def require_image_type(kind: pa.DataType, where: str) -> None:
    """Raise BadInput if a column of this type cannot hold images."""
    try:
        _read_cells(pa.nulls(0, kind))
    except pa.ArrowException as error:
        raise BadInput(
            f"{where} is {cut_name(str(kind))}, no picture. "
            "Write its bytes, its URI as a string, or a struct of bytes and path."
        ) from error
