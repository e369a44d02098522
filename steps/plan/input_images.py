"""The pictures of the input, as the hash of each: every distinct one is read once, judged, and kept for the run."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, NotInstalled, TryAgain
from imagekiln.steps.imaging.input_images import ImageInspector, RejectedImage
from imagekiln.steps.job.job import JobLimits
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import is_remote_uri

ALLOWED_SCHEMES = {"s3", "s3a", "gs", "gcs"}
MAX_KEY_BYTES = 1024  # bytes of a key, as S3 has it


def read_input_image(name: str, table: str, most: int) -> bytes:
    """The first bytes, at most so many, of the picture that the table at a path or URI names.

    Relative paths are relative to the working directory, as those of prompts are. Raises Unfit, or TryAgain where
    storage fails, or NotInstalled where nothing here reads from such a store.
    """
    folder, key = _resolve_location(name, is_remote_uri(table))
    try:
        return open_store(folder).read_prefix(key, most)
    except NotInstalled:  # true of every row's, and no fault of this one
        raise
    except BadInput as error:  # it is missing, or may not be read
        raise RejectedImage("missing") from error


def _resolve_location(name: str, elsewhere: bool) -> tuple[str, str]:
    """The folder that the name leads to, and the name in it. Raises Unfit."""
    if len(name.encode()) > MAX_KEY_BYTES:
        raise RejectedImage("place")
    if is_remote_uri(name):
        return _resolve_object(name)
    if elsewhere:
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
    """Texts by key. One thread at a time."""

    def __init__(self, path: Path) -> None:
        """Begin with none, in a new file."""
        # DuckDB asks for rows from threads of its own, one after the other.
        self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        for sql in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "CREATE TABLE known (key TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID",
        ):
            self._base.execute(sql)

    def get_many(self, keys: Iterable[str]) -> dict[str, str]:
        """The texts of those keys that have one. Raises TryAgain."""
        asked = json.dumps(list(keys))
        with _translate_errors():
            return dict(
                self._base.execute(
                    "SELECT key, text FROM known WHERE key IN (SELECT value FROM json_each(?))",
                    [asked],
                )
            )

    def add_many(self, texts: Mapping[str, str]) -> None:
        """Remember texts by new keys. Raises TryAgain where the disk is full."""
        with _translate_errors():
            self._base.execute("BEGIN")
            self._base.executemany("INSERT INTO known VALUES (?, ?)", texts.items())
            self._base.execute("COMMIT")

    def close(self) -> None:
        """Let go of the file."""
        self._base.close()


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise TryAgain(
            f"planning ran out of disk ({error}). Free some space and run the command again."
        ) from error


READERS = 16
DIGEST_CHARS = 64
ImageSink = Callable[[str, bytes], None]
DigestsOrFaults = list[str | None]


@dataclass(frozen=True, slots=True)
class ImageDigests:
    """The SHA-256 of each cell's picture, null where there is none; and where one cannot be taken, its fault."""

    values: pa.Array
    faults: pa.Array

    def mark_invalid(self, wrong: pa.Array, column: str) -> pa.Array:
        """`wrong` with column and fault written wherever a picture cannot be taken and nothing stood yet."""
        return pc.coalesce(wrong, pc.binary_join_element_wise(column, self.faults, " "))


class InputImages:
    """Reads the pictures of one input. Close it after use."""

    def __init__(self, limits: JobLimits, spool: Path, keep: ImageSink | None = None) -> None:
        """Take what is told the hash and the bytes of each picture that is good, once or a few times."""
        self._most = limits.picture_bytes
        self._inspector = ImageInspector(limits)
        self._known = DiskCache(spool / "pictures.sqlite")
        self._keep = keep

    def close(self) -> None:
        """Let go of what was found out."""
        self._known.close()

    def digest_column(self, array: pa.Array, table: str) -> ImageDigests:
        """The pictures of a column of the table at a path or URI. Raises TryAgain where storage fails."""
        said = pa.array(self._digests_or_faults(array, table), pa.string())
        good = pc.equal(pc.binary_length(said), DIGEST_CHARS)
        nothing = pa.scalar(None, pa.string())
        return ImageDigests(pc.if_else(good, said, nothing), pc.if_else(good, nothing, said))

    def _digests_or_faults(self, array: pa.Array, table: str) -> DigestsOrFaults:
        """The hash of each cell's picture, or its fault."""
        kind = array.type
        if pa.types.is_dictionary(kind):
            found = self._digests_or_faults(array.dictionary, table)
            return [None if place is None else found[place] for place in array.indices.to_pylist()]
        if pa.types.is_struct(kind):
            held = self._digests_or_faults(pc.struct_field(array, "bytes"), table)
            named = self._digests_or_faults(
                pc.if_else([each is None for each in held], pc.struct_field(array, "path"), None),
                table,
            )
            return [one or other for one, other in zip(held, named, strict=True)]
        cells = array.to_pylist()
        if is_bytes_type(kind):
            return self._look_up(
                [_cache_key("bytes", cell) for cell in cells],
                lambda place: self._validate(cells[place]),
            )
        named = [_cache_key("name", None if cell is None else cell.encode()) for cell in cells]
        return self._look_up(named, lambda place: self._fetch(cells[place], table))

    def _look_up(self, keys: Sequence[str | None], look: Callable[[int], str]) -> DigestsOrFaults:
        """What is known of each key; for those that are new, what `look` says of the first place of each."""
        first: dict[str, int] = {}
        for place, key in enumerate(keys):
            if key is not None:
                first.setdefault(key, place)
        known = self._known.get_many(first)
        new = [key for key in first if key not in known]
        found = dict(
            zip(
                new,
                map_ordered(lambda number: look(first[new[number]]), len(new), READERS),
                strict=True,
            )
        )
        self._known.add_many(found)
        known |= found
        return [None if key is None else known[key] for key in keys]

    def _fetch(self, name: str, table: str) -> str:
        try:
            return self._validate(read_input_image(name, table, self._most + 1))
        except RejectedImage as error:
            return error.reason

    def _validate(self, content: bytes) -> str:
        try:
            self._inspector.inspect(content)
        except RejectedImage as error:
            return error.reason
        digest = hashlib.sha256(content).hexdigest()
        if self._keep is not None:
            self._keep(digest, content)
        return digest


def _cache_key(kind: str, content: bytes | None) -> str | None:
    return None if content is None else f"{kind}:{hashlib.sha256(content).hexdigest()}"


def is_bytes_type(kind: pa.DataType) -> bool:
    """Whether a column of this type holds bytes."""
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def holds_image_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type holds pictures themselves, and not just where they are."""
    if pa.types.is_dictionary(kind):
        return holds_image_bytes(kind.value_type)
    return is_bytes_type(kind) or pa.types.is_struct(kind)


def require_image_type(kind: pa.DataType, where: str) -> None:
    """Raise BadInput where a column of this type is no column of pictures."""
    if pa.types.is_dictionary(kind):
        require_image_type(kind.value_type, where)
    elif pa.types.is_struct(kind):
        fields = {each.name: each.type for each in kind}
        if not (
            is_bytes_type(fields.get("bytes", pa.null()))
            and _is_text_type(fields.get("path", pa.null()))
        ):
            raise BadInput(
                f"{where} is {kind}, no picture. Write its bytes, or a struct of bytes and path."
            )
    elif not (is_bytes_type(kind) or _is_text_type(kind)):
        raise BadInput(
            f"{where} is {kind}, no picture. Write its bytes, or the URI where it lies as a string."
        )


def _is_text_type(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_null(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    )
