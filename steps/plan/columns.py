"""Cells of the input, of whatever type they came, as text, integers or numbers. Column by column, never by row."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput
from imagekiln.steps.models.loras import LORA_REJECTION_TEXTS, lora_key, parse_loras
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS
from imagekiln.steps.runs.tables import RESERVED_COLUMNS

# Our columns of a prompt row, in the order of the errors that are reported, and what each holds.
PROMPT_COLUMNS = {
    "prompt": "text",
    "id": "text",
    "negative_prompt": "text",
    "sampler": "text",
    "seed": "integer",
    "width": "integer",
    "height": "integer",
    "steps": "integer",
    "images": "integer",
    "guidance": "number",
    "loras": "text",
    "strength": "number",
    **dict.fromkeys(INPUT_IMAGE_COLUMNS, "picture"),
}
INTEGER_PATTERN = r"^\s*[+-]?0*[0-9]{1,19}\s*$"  # what 64 bits hold, and a little more
NUMBER_PATTERN = r"^\s*[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})([eE][+-]?[0-9]{1,3})?\s*$"
MAX_EXACT_FLOAT = float(2**53)
MAX_TEXT_BYTES = 2**30  # of text in one batch


@dataclass(frozen=True, slots=True)
class Cells:
    """Values, null where there was none or one of no use; `good` is False for the latter."""

    values: pa.Array
    valid: pa.Array | None = None

    def mark_invalid(self, wrong: pa.Array, column: str) -> pa.Array:
        """`wrong` with `column` written wherever a value was of no use and nothing stood yet."""
        if self.valid is None:
            return wrong
        return pc.if_else(pc.or_(self.valid, pc.is_valid(wrong)), wrong, pa.scalar(column))


def read_texts(array: pa.Array, where: str) -> Cells:
    """Text of any Arrow flavour; integers are taken as their digits. Raises BadInput on other types."""
    array = _decode_dictionary(array, where)
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return Cells(array.cast(pa.string()))
    if not _is_text(kind):
        raise BadInput(f"{where} is {kind}, not text. Write it as strings.")
    array = array.cast(pa.string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return _decode_rows(array)
    return Cells(array)


def read_integers(array: pa.Array, where: str) -> Cells:
    """Integers of any width, whole floats (pandas has no other nulls), or digits. Raises BadInput on other types."""
    array = _decode_dictionary(array, where)
    if pa.types.is_null(array.type) or pa.types.is_signed_integer(array.type):
        return Cells(array.cast(pa.int64()))
    if pa.types.is_unsigned_integer(array.type):
        return _keep_valid(
            array, pc.less(array.cast(pa.uint64()), pa.scalar(2**63, pa.uint64())), pa.int64()
        )
    if pa.types.is_floating(array.type):
        array = _without_nan(array.cast(pa.float64()))
        whole = pc.and_(
            pc.equal(pc.trunc(array), array), pc.less_equal(pc.abs(array), MAX_EXACT_FLOAT)
        )
        return _keep_valid(array, whole, pa.int64())
    digits = _parse_text(
        array,
        INTEGER_PATTERN,
        pa.string(),
        f"{where} is {array.type}, not integers. Write it as integers.",
    )
    return _digits_to_int64(digits)


def read_numbers(array: pa.Array, where: str) -> Cells:
    """Floats, integers, or their text. Raises BadInput on other types."""
    array = _decode_dictionary(array, where)
    if pa.types.is_null(array.type) or pa.types.is_integer(array.type):
        return Cells(array.cast(pa.float64(), safe=False))
    if pa.types.is_floating(array.type):
        array = _without_nan(array.cast(pa.float64()))
        return _keep_valid(array, pc.is_finite(array), pa.float64())
    return _parse_text(
        array,
        NUMBER_PATTERN,
        pa.float64(),
        f"{where} is {array.type}, not numbers. Write it as floats.",
    )


COLUMN_READERS = {"text": read_texts, "integer": read_integers, "number": read_numbers}


def _decode_dictionary(array: pa.Array, where: str) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        _refuse_large_dictionary(array, where)
        array = array.dictionary_decode()
    return array.cast(pa.string()) if pa.types.is_string_view(array.type) else array


def _refuse_large_dictionary(array: pa.DictionaryArray, where: str) -> None:
    """Raise BadInput where a small dictionary of long texts would fill the memory once each row has its own."""
    longest = (
        pc.max(pc.binary_length(array.dictionary)).as_py()
        if _is_text(array.dictionary.type)
        else None
    )
    if (longest or 0) * len(array) > MAX_TEXT_BYTES:
        size = (
            pc.sum(pc.binary_length(array.dictionary).take(array.indices).cast(pa.int64())).as_py()
            or 0
        )
        if size > MAX_TEXT_BYTES:
            raise BadInput(
                f"{where} has {size} bytes of text in {len(array)} rows. Write shorter texts."
            )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _without_nan(array: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)


def _keep_valid(array: pa.Array, good: pa.Array, kind: pa.DataType) -> Cells:
    kept = pc.if_else(good, array, pa.scalar(None, array.type))
    return Cells(kept.cast(kind), pc.or_(pc.is_null(array), pc.fill_null(good, True)))


def _parse_text(array: pa.Array, pattern: str, kind: pa.DataType, sentence: str) -> Cells:
    if not _is_text(array.type):
        raise BadInput(sentence)
    blank = pc.equal(pc.utf8_trim_whitespace(array), "")
    array = pc.if_else(pc.fill_null(blank, False), pa.scalar(None, array.type), array)
    good = pc.match_substring_regex(array, pattern)
    trimmed = _keep_valid(pc.utf8_trim_whitespace(array), good, array.type)
    return Cells(pc.replace_substring_regex(trimmed.values, r"^\+", "").cast(kind), trimmed.valid)


def _digits_to_int64(digits: Cells) -> Cells:
    """Digits of at most 19 places with their sign as integers, of no use where they are beyond 64 bits."""
    sizes = pc.replace_substring_regex(digits.values, "^-?0*([0-9]+)$", r"\1").cast(pa.uint64())
    fitting = _keep_valid(sizes, pc.less(sizes, pa.scalar(2**63, pa.uint64())), pa.int64())
    negative = pc.starts_with(digits.values, "-")
    values = pc.if_else(negative, pc.negate(fitting.values), fitting.values)
    return Cells(values, pc.and_(digits.valid, fitting.valid))


def _decode_rows(array: pa.Array) -> Cells:
    # Rare, so by row: whoever wrote bytes that are no UTF-8 loses those rows and no others.
    kept = [_decode_cell(cell.as_py()) for cell in array.cast(pa.binary())]
    values = pa.array([text for text, _ in kept], pa.string())
    return Cells(values, pa.array([good for _, good in kept], pa.bool_()))


def _decode_cell(cell: bytes | None) -> tuple[str | None, bool]:
    try:
        return (None if cell is None else cell.decode(), True)
    except UnicodeDecodeError:
        return (None, False)


PASSTHROUGH_MARK = "carry"  # how a row is marked whose carried text is of no use


def passthrough_schema(there: pa.Schema, columns: tuple[str, ...], where: str) -> pa.Schema:
    """The columns to carry, those of extension types as what they are stored as. Raises BadInput."""
    for name in columns:
        if name in RESERVED_COLUMNS:
            raise BadInput(
                f"carry: {name!r} is a column of the dataset itself. Rename it in the input."
            )
        if name not in there.names:
            raise BadInput(f"{where}: has no column {name!r} to carry. Correct `carry`.")
        if not _survives_duckdb(kind := _storage_type(there.field(name).type)):
            raise BadInput(
                f"{where}: column {name!r} is {kind}, which cannot be carried. Write it as another type."
            )
    return pa.schema([pa.field(name, _storage_type(there.field(name).type)) for name in columns])


def read_passthrough(array: pa.Array, where: str) -> Cells:
    """The values as they are; text that is no UTF-8 is of no use. Raises BadInput where it lies deeper."""
    array = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            raise BadInput(
                f"{where} has text that is no UTF-8. Correct it, or do not carry it."
            ) from error
        found = read_texts(array, where)
        return Cells(found.values.cast(array.type), found.valid)
    return Cells(array)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _survives_duckdb(kind: pa.DataType) -> bool:
    """Whether DuckDB, in which rows are judged, gives values of this type back as they were."""
    if isinstance(kind, pa.BaseExtensionType):
        return False
    if pa.types.is_nested(kind):
        plain = not (
            pa.types.is_list_view(kind)
            or pa.types.is_large_list_view(kind)
            or pa.types.is_union(kind)
        )
        return plain and all(
            _survives_duckdb(kind.field(place).type) for place in range(kind.num_fields)
        )
    if pa.types.is_dictionary(kind):
        return _survives_duckdb(kind.value_type)
    lost = (pa.types.is_float16, pa.types.is_decimal256, pa.types.is_duration, pa.types.is_interval)
    return not any(is_lost(kind) for is_lost in lost)


MAX_CACHED_TEXTS = 100_000
LORA_COLUMNS = ("lora_names", "lora_key", "lora_fault")  # all null where a row asks for none


class LoraColumnReader:
    """Turns texts into what a plan keeps of them. A null is the job's default, an empty text is no LoRA."""

    def __init__(self, default: str, digests: Mapping[str, str]) -> None:
        """Take the job's default and the digest of each of its LoRAs. Raises BadInput on a default that is wrong."""
        self._digests = digests
        self._known: dict[str | None, tuple[str | None, ...]] = {}
        if fault := parse_loras(default, digests).rejection:
            known = ", ".join(sorted(digests)) or "none"
            raise BadInput(
                f"defaults.loras {LORA_REJECTION_TEXTS[fault]}; model.loras has {known}. Correct it."
            )
        self._default = self._parse(default)

    def read(self, column: pa.Array) -> tuple[pa.Array, ...]:
        """The canonical text, the key that goes into image_id, and the fault of each row, as LORA_COLUMNS."""
        each = column.dictionary_encode(null_encoding="encode")
        read = [self._look_up(text) for text in each.dictionary.to_pylist()]
        return tuple(
            pa.array(values, pa.string()).take(each.indices) for values in zip(*read, strict=True)
        )

    def _look_up(self, text: str | None) -> tuple[str | None, ...]:
        if text is None:
            return self._default
        if text not in self._known:
            if len(self._known) >= MAX_CACHED_TEXTS:
                self._known.clear()
            self._known[text] = self._parse(text)
        return self._known[text]

    def _parse(self, text: str) -> tuple[str | None, ...]:
        found = parse_loras(text, self._digests)
        return (
            found.canonical,
            found.canonical and lora_key(found.canonical, self._digests),
            found.rejection,
        )
