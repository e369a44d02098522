"""The input images of prompt rows, as their hashes: each distinct one is read and checked once."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, NotInstalled, cut_name
from imagekiln.steps.imaging.input_images import MAX_INPUT_BYTES, ImageInspector, RejectedImage
from imagekiln.steps.plan.columns import decode_dictionary, is_text
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import is_remote_uri

ALLOWED_SCHEMES = {"s3", "s3a", "gs", "gcs"}
MAX_KEY_BYTES = 1024  # S3's limit
READERS = 16
DIGEST_CHARS = 64
MAX_KNOWN = 250_000  # images that are not read again

ImageSink = Callable[[str, bytes], None]
ImageReader = Callable[[str, str, int], bytes]
DigestsOrFaults = list[str | None]


def read_input_image(name: str, table: str, limit: int) -> bytes:
    """At most `limit` bytes of the image that the table at a path or URI names.

    Relative paths start at the working directory. Raises RejectedImage, TryAgain, NotInstalled.
    """
    folder, key = _resolve_location(name, is_remote_uri(table))
    try:
        return open_store(folder).read_prefix(key, limit)
    except NotInstalled:  # true of every row, and no fault of this one
        raise
    except BadInput as error:  # it does not exist, or may not be read
        raise RejectedImage("missing") from error


def _resolve_location(name: str, is_remote_table: bool) -> tuple[str, str]:
    """The folder of a name, and the name within it. Raises RejectedImage."""
    if len(name.encode()) > MAX_KEY_BYTES:
        raise RejectedImage("place")
    if is_remote_uri(name):
        return _resolve_object(name)
    if is_remote_table:  # it must not reach for files of this machine
        raise RejectedImage("place")
    path = Path(name.removeprefix("file://"))
    with suppress(OSError):  # a name that is too long
        if path.is_file():  # a pipe, or a device, would be read for ever
            return str(path.absolute().parent), path.name
    raise RejectedImage("missing")


def _resolve_object(name: str) -> tuple[str, str]:
    scheme, _, rest = name.partition("://")
    # Two colons would chain file systems, and lead from an allowed one to any.
    if scheme not in ALLOWED_SCHEMES or "::" in name:
        raise RejectedImage("place")
    folder, _, key = rest.rpartition("/")
    if not folder or not key:
        raise RejectedImage("missing")
    return f"{scheme}://{folder}", key


@dataclass(frozen=True, slots=True)
class ImageDigests:
    """The SHA-256 of each cell's image, or its fault; both null for an empty cell."""

    values: pa.Array
    faults: pa.Array

    def mark_invalid(self, wrong: pa.Array, column: str) -> pa.Array:
        """Write column and fault into the nulls of `wrong` for rejected images."""
        return pc.coalesce(wrong, pc.binary_join_element_wise(column, self.faults, " "))


class InputImages:
    """Reads the images of one input."""

    def __init__(self, sink: ImageSink | None = None, read: ImageReader = read_input_image) -> None:
        """Take what receives the hash and the bytes of each accepted image, once or a few times."""
        self._inspector = ImageInspector()
        self._known: dict[str, str] = {}  # hashes or faults, by kind and hash of the cell
        self._sink = sink
        self._read = read

    def digest_column(self, array: pa.Array, table: str) -> ImageDigests:
        """The images of a column of the table at a path or URI. Raises TryAgain."""
        results = pa.array(self._digests_or_faults(array, table), pa.string())
        lengths = pc.binary_length(results)
        is_digest = pc.equal(lengths, DIGEST_CHARS)
        null = pa.scalar(None, pa.string())
        return ImageDigests(
            values=pc.if_else(is_digest, results, null),
            faults=pc.if_else(is_digest, null, results),
        )

    def _digests_or_faults(self, array: pa.Array, table: str) -> DigestsOrFaults:
        array = decode_dictionary(array)
        if pa.types.is_struct(array.type):
            return self._read_structs(array, table)
        if _is_bytes_type(array.type):
            contents = array.to_pylist()
            keys = [_cache_key("bytes", content) for content in contents]
            return self._look_up(keys, lambda index: self._inspect(contents[index]))
        texts = array.cast(pa.large_binary())  # they may be no UTF-8
        names = texts.to_pylist()
        keys = [_cache_key("name", name) for name in names]
        return self._look_up(keys, lambda index: self._fetch(names[index], table))

    def _read_structs(self, array: pa.Array, table: str) -> DigestsOrFaults:
        """Cells of bytes and a path; the path counts only without bytes."""
        contents = pc.struct_field(array, "bytes")
        by_bytes = self._digests_or_faults(contents, table)
        without_bytes = [result is None for result in by_bytes]
        names = pc.struct_field(array, "path")
        paths = pc.if_else(without_bytes, names, None)
        by_path = self._digests_or_faults(paths, table)
        return [first or second for first, second in zip(by_bytes, by_path, strict=True)]

    def _look_up(
        self, keys: Sequence[str | None], compute: Callable[[int], str]
    ) -> DigestsOrFaults:
        """The result for each key; `compute` gives those of new keys by their first index."""
        first_index: dict[str, int] = {}
        for index, key in enumerate(keys):
            if key is not None:
                first_index.setdefault(key, index)
        new_keys = [key for key in first_index if key not in self._known]
        indices = [first_index[key] for key in new_keys]
        computed = map_ordered(
            lambda number: compute(indices[number]),
            len(indices),
            READERS,
        )
        self._known.update(zip(new_keys, computed, strict=True))
        results = [None if key is None else self._known[key] for key in keys]
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        return results

    def _fetch(self, name: bytes, table: str) -> str:
        try:
            content = self._read(name.decode(), table, MAX_INPUT_BYTES + 1)
        except UnicodeDecodeError:
            return "missing"
        except RejectedImage as error:
            return error.reason
        return self._inspect(content)

    def _inspect(self, content: bytes) -> str:
        try:
            self._inspector.inspect(content)
        except RejectedImage as error:
            return error.reason
        digest = hashlib.sha256(content).hexdigest()
        if self._sink is not None:
            self._sink(digest, content)
        return digest


def _cache_key(kind: str, content: bytes | None) -> str | None:
    return None if content is None else f"{kind}:{hashlib.sha256(content).hexdigest()}"


def _is_bytes_type(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def require_image_type(kind: pa.DataType, where: str) -> None:
    """Raise BadInput if a column of this type cannot be one of images."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        has_bytes = _is_bytes_type(fields.get("bytes", pa.null()))
        is_image = has_bytes and _is_text_type(fields.get("path", pa.null()))
    else:
        is_image = _is_bytes_type(kind) or _is_text_type(kind)
    if not is_image:
        raise BadInput(
            f"{where} is {cut_name(str(kind))}, no picture. "
            "Write its bytes, its URI as a string, or a struct of bytes and path."
        )


def _is_text_type(kind: pa.DataType) -> bool:
    return is_text(kind) or pa.types.is_null(kind) or pa.types.is_string_view(kind)
