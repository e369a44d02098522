"""The pictures of the input, as the hash of each: every distinct one is read once, judged, and kept for the run."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import input_place
from imagekiln.steps.errors import BadInput
from imagekiln.steps.in_order import in_order
from imagekiln.steps.input_picture import Inspector, Unfit
from imagekiln.steps.job import Limits
from imagekiln.steps.remembered import Remembered

READERS = 16
DIGEST_CHARS = 64
Keep = Callable[[str, bytes], None]
Said = list[str | None]


@dataclass(frozen=True, slots=True)
class Pictured:
    """The SHA-256 of each cell's picture, null where there is none; and where one cannot be taken, its fault."""

    values: pa.Array
    faults: pa.Array

    def mark(self, wrong: pa.Array, column: str) -> pa.Array:
        """`wrong` with column and fault written wherever a picture cannot be taken and nothing stood yet."""
        return pc.coalesce(wrong, pc.binary_join_element_wise(column, self.faults, " "))


class Pictures:
    """Reads the pictures of one input. Close it after use."""

    def __init__(self, limits: Limits, spool: Path, keep: Keep | None = None) -> None:
        """Take what is told the hash and the bytes of each picture that is good, once or a few times."""
        self._most = limits.picture_bytes
        self._inspector = Inspector(limits)
        self._known = Remembered(spool / "pictures.sqlite")
        self._keep = keep

    def close(self) -> None:
        """Let go of what was found out."""
        self._known.close()

    def cells(self, array: pa.Array, table: str) -> Pictured:
        """The pictures of a column of the table at a path or URI. Raises TryAgain where storage fails."""
        said = pa.array(self._said(array, table), pa.string())
        good = pc.equal(pc.binary_length(said), DIGEST_CHARS)
        nothing = pa.scalar(None, pa.string())
        return Pictured(pc.if_else(good, said, nothing), pc.if_else(good, nothing, said))

    def _said(self, array: pa.Array, table: str) -> Said:
        """The hash of each cell's picture, or its fault."""
        kind = array.type
        if pa.types.is_dictionary(kind):
            found = self._said(array.dictionary, table)
            return [None if place is None else found[place] for place in array.indices.to_pylist()]
        if pa.types.is_struct(kind):
            held = self._said(pc.struct_field(array, "bytes"), table)
            named = self._said(pc.if_else([each is None for each in held], pc.struct_field(array, "path"), None), table)
            return [one or other for one, other in zip(held, named, strict=True)]
        cells = array.to_pylist()
        if is_bytes(kind):
            return self._told([_key("bytes", cell) for cell in cells], lambda place: self._judged(cells[place]))
        named = [_key("name", None if cell is None else cell.encode()) for cell in cells]
        return self._told(named, lambda place: self._fetched(cells[place], table))

    def _told(self, keys: Sequence[str | None], look: Callable[[int], str]) -> Said:
        """What is known of each key; for those that are new, what `look` says of the first place of each."""
        first: dict[str, int] = {}
        for place, key in enumerate(keys):
            if key is not None:
                first.setdefault(key, place)
        known = self._known.of(first)
        new = [key for key in first if key not in known]
        found = dict(zip(new, in_order(lambda number: look(first[new[number]]), len(new), READERS), strict=True))
        self._known.add(found)
        known |= found
        return [None if key is None else known[key] for key in keys]

    def _fetched(self, name: str, table: str) -> str:
        try:
            return self._judged(input_place.read(name, table, self._most + 1))
        except Unfit as error:
            return error.fault

    def _judged(self, content: bytes) -> str:
        try:
            self._inspector.inspect(content)
        except Unfit as error:
            return error.fault
        digest = hashlib.sha256(content).hexdigest()
        if self._keep is not None:
            self._keep(digest, content)
        return digest


def _key(kind: str, content: bytes | None) -> str | None:
    return None if content is None else f"{kind}:{hashlib.sha256(content).hexdigest()}"


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type holds pictures themselves, and not just where they are."""
    if pa.types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    return is_bytes(kind) or pa.types.is_struct(kind)


def refuse_type(kind: pa.DataType, where: str) -> None:
    """Raise BadInput where a column of this type is no column of pictures."""
    if pa.types.is_dictionary(kind):
        refuse_type(kind.value_type, where)
    elif pa.types.is_struct(kind):
        fields = {each.name: each.type for each in kind}
        if not (is_bytes(fields.get("bytes", pa.null())) and _is_text(fields.get("path", pa.null()))):
            raise BadInput(f"{where} is {kind}, no picture. Write its bytes, or a struct of bytes and path.")
    elif not (is_bytes(kind) or _is_text(kind)):
        raise BadInput(f"{where} is {kind}, no picture. Write its bytes, or the URI where it lies as a string.")


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_null(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    )
