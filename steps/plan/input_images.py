"""The input images of prompt rows, as their hashes: each distinct one is read and checked once."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, NotInstalled, TryAgain, cut_name
from imagekiln.steps.imaging.input_images import MAX_INPUT_BYTES, ImageInspector, RejectedImage
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import is_remote_uri

ALLOWED_SCHEMES = {"s3", "s3a", "gs", "gcs"}
MAX_KEY_BYTES = 1024  # S3's limit
READERS = 16
DIGEST_CHARS = 64

ImageSink = Callable[[str, bytes], None]
ImageReader = Callable[[str, str, int], bytes]
DigestsOrFaults = list[str | None]


def read_input_image(name: str, table: str, limit: int) -> bytes:
    """At most `limit` bytes of the image that the table at a path or URI names.

    Relative paths are relative to the working directory, as those of prompt files are.
    Raises RejectedImage, TryAgain where storage fails, NotInstalled where this installation cannot
    read from such a store.
    """
    folder, key = _resolve_location(name, is_remote_uri(table))
    try:
        return open_store(folder).read_prefix(key, limit)
    except NotInstalled:  # true of every row, and no fault of this one
        raise
    except BadInput as error:  # it does not exist, or may not be read
        raise RejectedImage("missing") from error


def _resolve_location(name: str, is_remote_table: bool) -> tuple[str, str]:
    """The folder that the name leads to, and the name within it. Raises RejectedImage."""
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


class DiskCache:
    """Texts by key, in a database on disk. For one thread at a time."""

    def __init__(self, path: Path, max_pages: int | None = None) -> None:
        """Create it empty at `path`, of at most `max_pages` pages of SQLite's. Raises TryAgain."""
        # DuckDB asks for rows from threads of its own, one after the other.
        with _translate_sqlite_errors():
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = OFF")
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.execute(
                "CREATE TABLE known (key TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID"
            )
            if max_pages is not None:
                self._connection.execute(f"PRAGMA max_page_count = {max_pages}")

    def get_many(self, keys: Iterable[str]) -> dict[str, str]:
        """The texts of those keys that have one. Raises TryAgain."""
        sql = "SELECT key, text FROM known WHERE key IN (SELECT value FROM json_each(?))"
        with _translate_sqlite_errors():
            return dict(self._connection.execute(sql, [json.dumps(list(keys))]))

    def add_many(self, texts: Mapping[str, str]) -> None:
        """Store texts under new keys. Raises TryAgain where the disk is full."""
        with _translate_sqlite_errors():
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT INTO known VALUES (?, ?)", texts.items())
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


@contextmanager
def _translate_sqlite_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise TryAgain(
            f"planning ran out of disk ({error}). Free some space and run the command again."
        ) from error


@dataclass(frozen=True, slots=True)
class ImageDigests:
    """The SHA-256 of each cell's image, null where there is none; of a rejected one, its fault."""

    values: pa.Array
    faults: pa.Array

    def mark_invalid(self, wrong: pa.Array, column: str) -> pa.Array:
        """`wrong`, with column and fault written where an image is rejected and `wrong` is null."""
        return pc.coalesce(wrong, pc.binary_join_element_wise(column, self.faults, " "))


class InputImages:
    """Reads the images of one input. Close it after use."""

    def __init__(
        self,
        folder: Path,
        sink: ImageSink | None = None,
        read: ImageReader = read_input_image,
    ) -> None:
        """Take what receives the hash and the bytes of each accepted image, once or a few times.

        `folder` is for a working file.
        """
        self._inspector = ImageInspector()
        self._cache = DiskCache(folder / "pictures.sqlite")
        self._sink = sink
        self._read = read

    def close(self) -> None:
        """Close the working file."""
        self._cache.close()

    def digest_column(self, array: pa.Array, table: str) -> ImageDigests:
        """The images of a column of the table at a path or URI. Raises TryAgain."""
        results = pa.array(self._digests_or_faults(array, table), pa.string())
        is_digest = pc.equal(pc.binary_length(results), DIGEST_CHARS)
        null = pa.scalar(None, pa.string())
        return ImageDigests(
            values=pc.if_else(is_digest, results, null),
            faults=pc.if_else(is_digest, null, results),
        )

    def _digests_or_faults(self, array: pa.Array, table: str) -> DigestsOrFaults:
        """The hash of each cell's image, or its fault."""
        kind = array.type
        if pa.types.is_dictionary(kind):
            results = self._digests_or_faults(array.dictionary, table)
            indices = array.indices.to_pylist()
            return [None if index is None else results[index] for index in indices]
        if pa.types.is_struct(kind):
            return self._read_structs(array, table)
        if _is_bytes_type(kind):
            contents = array.to_pylist()
            keys = [_cache_key("bytes", content) for content in contents]
            return self._look_up(keys, lambda index: self._inspect(contents[index]))
        names = array.cast(pa.large_binary()).to_pylist()  # a file's texts may be no UTF-8
        keys = [_cache_key("name", name) for name in names]
        return self._look_up(keys, lambda index: self._fetch(names[index], table))

    def _read_structs(self, array: pa.Array, table: str) -> DigestsOrFaults:
        """Cells of bytes and a path, of which the path counts only where there are no bytes."""
        by_bytes = self._digests_or_faults(pc.struct_field(array, "bytes"), table)
        without_bytes = [result is None for result in by_bytes]
        paths = pc.if_else(without_bytes, pc.struct_field(array, "path"), None)
        by_path = self._digests_or_faults(paths, table)
        return [first or second for first, second in zip(by_bytes, by_path, strict=True)]

    def _look_up(
        self, keys: Sequence[str | None], compute: Callable[[int], str]
    ) -> DigestsOrFaults:
        """What is cached for each key; for new ones, what `compute` gives for their first index."""
        first_index: dict[str, int] = {}
        for index, key in enumerate(keys):
            if key is not None:
                first_index.setdefault(key, index)
        results = self._cache.get_many(first_index)
        new_keys = [key for key in first_index if key not in results]
        computed = map_ordered(
            lambda number: compute(first_index[new_keys[number]]), len(new_keys), READERS
        )
        new = dict(zip(new_keys, computed, strict=True))
        self._cache.add_many(new)
        results |= new
        return [None if key is None else results[key] for key in keys]

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
    """Whether a column of this type holds bytes."""
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def require_image_type(kind: pa.DataType, where: str) -> None:
    """Raise BadInput where a column of this type cannot be one of images."""
    if pa.types.is_dictionary(kind):
        require_image_type(kind.value_type, where)
    elif pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        has_bytes = _is_bytes_type(fields.get("bytes", pa.null()))
        has_path = _is_text_type(fields.get("path", pa.null()))
        if not (has_bytes and has_path):
            raise BadInput(
                f"{where} is {cut_name(str(kind))}, no picture. "
                "Write its bytes, or a struct of bytes and path."
            )
    elif not (_is_bytes_type(kind) or _is_text_type(kind)):
        raise BadInput(
            f"{where} is {cut_name(str(kind))}, no picture. "
            "Write its bytes, or the URI where it lies as a string."
        )


def _is_text_type(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_null(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    )
