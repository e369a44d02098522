"""Cells of the input, of whatever type they came, as text, integers or numbers. Column by column, never by row."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput

# Columns of pictures that condition an image: what it starts from, where it is drawn anew, what guides it.
INPUT_IMAGE_COLUMNS = ("source_image", "mask_image", "control_image", "reference_image")
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
        return _keep_valid(array, pc.less(array.cast(pa.uint64()), pa.scalar(2**63, pa.uint64())), pa.int64())
    if pa.types.is_floating(array.type):
        array = _without_nan(array.cast(pa.float64()))
        whole = pc.and_(pc.equal(pc.trunc(array), array), pc.less_equal(pc.abs(array), MAX_EXACT_FLOAT))
        return _keep_valid(array, whole, pa.int64())
    digits = _parse_text(
        array, INTEGER_PATTERN, pa.string(), f"{where} is {array.type}, not integers. Write it as integers."
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
        array, NUMBER_PATTERN, pa.float64(), f"{where} is {array.type}, not numbers. Write it as floats."
    )


COLUMN_READERS = {"text": read_texts, "integer": read_integers, "number": read_numbers}


def _decode_dictionary(array: pa.Array, where: str) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        _refuse_large_dictionary(array, where)
        array = array.dictionary_decode()
    return array.cast(pa.string()) if pa.types.is_string_view(array.type) else array


def _refuse_large_dictionary(array: pa.DictionaryArray, where: str) -> None:
    """Raise BadInput where a small dictionary of long texts would fill the memory once each row has its own."""
    longest = pc.max(pc.binary_length(array.dictionary)).as_py() if _is_text(array.dictionary.type) else None
    if (longest or 0) * len(array) > MAX_TEXT_BYTES:
        size = pc.sum(pc.binary_length(array.dictionary).take(array.indices).cast(pa.int64())).as_py() or 0
        if size > MAX_TEXT_BYTES:
            raise BadInput(f"{where} has {size} bytes of text in {len(array)} rows. Write shorter texts.")


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
