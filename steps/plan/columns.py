"""Columns of prompt tables: match their names, and convert values to strings, integers or numbers.

Values are converted by column, never row by row.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.job.columns import PROMPT_COLUMNS, ColumnKind, dataset_name
from imagekiln.steps.job.rows import ColumnNames
from imagekiln.steps.runs.tables import can_be_carried

# Names that other tools and datasets use, without the separators of their words.
SYNONYMS = {
    "prompt": ("prompts", "text", "caption"),
    "negative_prompt": ("negative",),
    "steps": ("samplingsteps", "inferencesteps", "numinferencesteps"),
    "guidance": ("cfg", "cfgscale", "guidancescale"),
    "sampler": ("samplername", "samplingmethod"),
    "loras": ("lora",),
    "source_image": ("initimage",),
    "reference_images": ("referenceimage",),
    "images": ("numimages", "imagesperprompt", "numimagesperprompt"),
}
SEPARATORS = re.compile(r"[\W_]+")  # between words; includes a byte order mark
DEFAULT_NAMES = ColumnNames()
OUR_NAMES = tuple(column.name for column in PROMPT_COLUMNS)
# Slightly more than 64 bits. A fraction of zeros, as pandas writes in columns with empty cells, is
# accepted up to the largest exact float.
INTEGER_PATTERN = r"^\s*[+-]?0*([0-9]{1,19}|[0-8]?[0-9]{1,15}\.0*)\s*$"
INT64_RANGE = pa.scalar(-(2**63)), pa.scalar(2**63 - 1)
NUMBER_PATTERN = r"^\s*[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})([eE][+-]?[0-9]{1,3})?\s*$"
MAX_EXACT_FLOAT = 2.0**53  # floats distinguish all integers up to this one
INVALID = "invalid"  # the fault of a cell that cannot be converted to the type of its column
# Arrow cannot filter view arrays, which some Parquet writers produce.
PLAIN_TYPES = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
MAX_LISTED_COLUMNS = 12


def fold_name(name: str) -> str:
    """Remove case and separators, so that `CFG Scale` equals `cfg_scale`."""
    return SEPARATORS.sub("", name).casefold()


def match_names(
    names: Sequence[str],
    columns: ColumnNames,
    where: str,
    wanted: Iterable[str] = OUR_NAMES,
) -> dict[str, str]:
    """Map the `wanted` prompt columns to the table's names for them.

    A name that the job sets must match exactly. Raises BadInput if two columns could match.
    """
    chosen = {theirs for ours, theirs in columns if is_set(ours, theirs)}
    free = [name for name in dict.fromkeys(names) if name not in chosen]
    matched: dict[str, str] = {}
    for ours in wanted:
        theirs = getattr(columns, ours)
        likely: list[str] = []
        if theirs in names:
            likely = [theirs]
        elif not is_set(ours, theirs):
            likely = find_spellings(free, ours)
        if len(likely) > 1:
            quoted = [repr(cut_name(name)) for name in likely]
            listed = " and ".join(quoted)
            raise BadInput(
                f"{where}: columns {listed} may each be {ours}. Set columns.{ours} to one of them."
            )
        if likely:
            matched[ours] = likely[0]
    return matched


def is_set(ours: str, theirs: str | None) -> bool:
    """Return whether a job sets the name of a column."""
    default: str | None = getattr(DEFAULT_NAMES, ours)
    return theirs != default


def find_spellings(names: Iterable[str], ours: str) -> list[str]:
    """Return the names that may stand for a prompt column, the exact name first."""
    synonyms = SYNONYMS.get(ours, ())
    spellings = {fold_name(ours), *synonyms}
    likely = [name for name in names if fold_name(name) in spellings]
    return sorted(likely, key=lambda name: name != ours)


def describe_unread(ours: str) -> str:
    """Describe how to leave a prompt column unread; empty for other columns."""
    if ours == "prompt" or ours not in OUR_NAMES:
        return ""
    return f" To leave {ours} unread, set `columns: {{{ours}: null}}`."


@dataclass(frozen=True, slots=True)
class Cells:
    """Converted cells of a column. Empty and invalid cells are null; `faults` marks the latter."""

    values: pa.Array
    faults: pa.Array | None = None

    def mark_invalid(self, wrong: pa.Array, column: str) -> pa.Array:
        """Fill nulls of `wrong` with the column and the fault, in rows whose cell is invalid."""
        if self.faults is None:
            return wrong
        return pc.coalesce(wrong, pc.binary_join_element_wise(column, self.faults, " "))


def read_texts(array: pa.Array, where: str) -> Cells:
    """Convert strings, integers and UUIDs to strings. Raises BadInput for other types."""
    array = decode_dictionary(array)
    kind = array.type
    if isinstance(kind, pa.UuidType):
        return Cells(uuid_texts(array.storage))
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return Cells(array.cast(pa.string()))
    return _read_valid_strings(array, f"{where} is {{}}, not text. Write it as strings.")


def read_integers(array: pa.Array, where: str) -> Cells:
    """Convert integers, whole floats and strings to integers. Raises BadInput for other types."""
    array = decode_dictionary(array)
    kind = array.type
    if pa.types.is_null(kind) or pa.types.is_signed_integer(kind):
        return Cells(array.cast(pa.int64()))
    if pa.types.is_floating(kind):  # as pandas stores integers beside nulls
        floats = _nan_to_null(array)
        is_whole = pc.equal(pc.trunc(floats), floats)
        is_exact = pc.less_equal(pc.abs(floats), MAX_EXACT_FLOAT)
        return _cast_valid(floats, pc.and_(is_whole, is_exact), pa.int64())
    if pa.types.is_unsigned_integer(kind):
        array = array.cast(pa.string())
    texts = _read_valid_strings(array, f"{where} is {{}}, not integers. Write it as integers.")
    decimals = _parse_strings(texts, INTEGER_PATTERN, pa.decimal128(38))
    lowest, highest = INT64_RANGE
    is_high_enough = pc.greater_equal(decimals.values, lowest)
    fits = pc.and_(is_high_enough, pc.less_equal(decimals.values, highest))
    return _cast_valid(
        decimals.values,
        fits,
        pa.int64(),
        decimals.faults,
    )


def read_numbers(array: pa.Array, where: str) -> Cells:
    """Convert floats, integers and strings to floats. Raises BadInput for other types."""
    array = decode_dictionary(array)
    kind = array.type
    if pa.types.is_null(kind) or pa.types.is_integer(kind):
        return Cells(array.cast(pa.float64(), safe=False))
    if pa.types.is_floating(kind):
        floats = _nan_to_null(array)
        return _cast_valid(floats, pc.is_finite(floats), pa.float64())
    texts = _read_valid_strings(array, f"{where} is {{}}, not numbers. Write it as floats.")
    return _parse_strings(texts, NUMBER_PATTERN, pa.float64())


COLUMN_READERS: Mapping[ColumnKind, Callable[[pa.Array, str], Cells]] = {
    "text": read_texts,
    "integer": read_integers,
    "number": read_numbers,
}


def decode_dictionary(array: pa.Array) -> pa.Array:
    """Convert dictionary-encoded values to plain values, and string views to strings."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    return array


def uuid_texts(storage: pa.FixedSizeBinaryArray) -> pa.Array:
    """Format UUIDs of 16 bytes, such as 123e4567-e89b-12d3-a456-426614174000."""
    cells = storage.to_pylist()
    texts = []
    for cell in cells:
        text = None if cell is None else str(UUID(bytes=cell))
        texts.append(text)
    return pa.array(texts, pa.string())


def is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is string or large string."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _nan_to_null(array: pa.Array) -> pa.Array:
    floats = array.cast(pa.float64())
    return pc.if_else(pc.is_nan(floats), None, floats)


def _cast_valid(
    array: pa.Array, is_valid: pa.Array, kind: pa.DataType, earlier: pa.Array | None = None
) -> Cells:
    """Cast valid cells to `kind`, and add the other cells to the `earlier` faults."""
    values = pc.if_else(is_valid, array, None)
    is_wrong = pc.and_(pc.is_valid(array), pc.is_null(values))
    faults = pc.if_else(is_wrong, INVALID, pa.scalar(None, pa.string()))
    return Cells(values.cast(kind), faults if earlier is None else pc.coalesce(earlier, faults))


def _parse_strings(texts: Cells, pattern: str, kind: pa.DataType) -> Cells:
    """Parse strings as numbers. Empty strings become null; others must match `pattern`."""
    trimmed = pc.utf8_trim_whitespace(texts.values)
    filled = pc.if_else(pc.equal(trimmed, ""), None, trimmed)
    cells = _cast_valid(
        filled,
        pc.match_substring_regex(filled, pattern),
        pa.string(),
        texts.faults,
    )
    unsigned = pc.replace_substring_regex(cells.values, r"^\+", "")
    return Cells(unsigned.cast(kind), cells.faults)


def _read_valid_strings(array: pa.Array, problem: str) -> Cells:
    """Return strings, with faults for invalid UTF-8. Raises BadInput(`problem`) for other types."""
    if not is_text(array.type):
        raise BadInput(problem.format(cut_name(str(array.type))))
    array = array.cast(pa.string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        # Invalid UTF-8 is rare, so a loop is fast enough. It rejects only the rows that have it.
        raw = array.view(pa.binary())
        decoded = [
            None if cell is None else cell.decode(errors="replace") for cell in raw.to_pylist()
        ]
        replaced = pa.array(decoded, pa.string())
        return _cast_valid(replaced, pc.equal(replaced.cast(pa.binary()), raw), pa.string())
    return Cells(array)


def passthrough_names(count: int) -> tuple[str, ...]:
    """Return internal names for the carried columns, since the user's names may be any string."""
    return tuple(f"carry_{index}" for index in range(count))


def passthrough_schema(file: pa.Schema, columns: tuple[str, ...], where: str) -> pa.Schema:
    """Build the schema of carried columns, in plain types. Raises BadInput if one is unsuitable."""
    fields = []
    spellings: dict[str, str] = {}  # SQL ignores case
    for name in columns:
        same = spellings.setdefault(dataset_name(name).lower(), name)
        if same != name:
            raise BadInput(
                f"carry: {same!r} and {name!r} would be the same column of the dataset, which "
                "distinguishes no upper and lower case. Rename one of them in the input."
            )
        if name not in file.names:
            raise BadInput(f"{where}: {describe_absence(file, name)}. Correct `carry`.")
        kind = storage_type(file.field(name).type)
        if not can_be_carried(kind):
            raise BadInput(
                f"{where}: column {name!r} is {cut_name(str(kind))}, which cannot be carried. "
                "Write it as another type."
            )
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def describe_absence(schema: pa.Schema, name: str) -> str:
    """Say that a file has no column `name`, and list the columns that it has."""
    listed = ", ".join(map(cut_name, schema.names[:MAX_LISTED_COLUMNS]))
    more = ", ..." if len(schema.names) > MAX_LISTED_COLUMNS else ""
    return f"has no column {name!r} (it has {listed or 'none'}{more})"


def read_passthrough(array: pa.Array, where: str) -> Cells:
    """Read a carried column unchanged. Raises BadInput for nested strings that are not UTF-8."""
    array = plain_array(array)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if not is_text(array.type):
            raise BadInput(
                f"{where} has text that is not valid UTF-8. Correct it, or do not carry it."
            ) from error
        cells = read_texts(array, where)
        return Cells(cells.values.cast(array.type), cells.faults)
    return Cells(array)


def plain_array(array: pa.Array) -> pa.Array:
    """Convert extension types to their storage types, and views to plain arrays."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    kind = storage_type(array.type)
    return array if array.type == kind else array.cast(kind)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the plain Arrow type that stores values of `kind`."""
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return PLAIN_TYPES.get(storage, storage)
