from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.columns import Cells, read_integers, read_numbers, read_texts

Reader = Callable[[pa.Array, str], Cells]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
INTEGER_TYPES = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
FLOAT_TYPES = [pa.float16(), pa.float32(), pa.float64()]
OTHER_TYPES = [
    pa.bool_(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4), pa.decimal128(9, 2),
    pa.decimal256(50, 0), pa.date32(), pa.timestamp("us"), pa.duration("s"), pa.list_(pa.string()),
    pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()), pa.uuid(),
]  # fmt: skip


def _values(cells: Cells) -> list[object]:
    values: list[object] = cells.values.to_pylist()
    return values


def _marked(cells: Cells) -> list[bool]:
    """Whether each cell was of no use."""
    wrong = cells.mark_invalid(pa.nulls(len(cells.values), pa.string()), "it")
    return [value == "it" for value in wrong.to_pylist()]


def _dictionary(values: list[object], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).dictionary_encode()


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_text_of_every_kind_is_taken_as_it_is(kind: pa.DataType) -> None:
    cells = read_texts(pa.array(["a", None, "", "\0\u00e9"], kind), "it")
    assert cells.values.type == pa.string()
    assert (_values(cells), _marked(cells)) == (["a", None, "", "\0\u00e9"], [False] * 4)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_in_a_dictionary_is_taken_as_it_is(kind: pa.DataType) -> None:
    assert _values(read_texts(_dictionary(["a", None, "b", "a"], kind), "it")) == [
        "a",
        None,
        "b",
        "a",
    ]


@pytest.mark.parametrize("kind", INTEGER_TYPES, ids=str)
def test_integers_are_taken_as_text_by_their_digits(kind: pa.DataType) -> None:
    assert _values(read_texts(pa.array([0, None, 127], kind), "it")) == ["0", None, "127"]


@pytest.mark.parametrize("kind", INTEGER_TYPES, ids=str)
def test_integers_of_every_width_are_taken(kind: pa.DataType) -> None:
    for reader in (read_integers, read_numbers):
        cells = reader(pa.array([0, None, 127], kind), "it")
        assert (_values(cells), _marked(cells)) == ([0, None, 127], [False] * 3)


@pytest.mark.parametrize("kind", FLOAT_TYPES, ids=str)
def test_whole_floats_are_integers_and_nan_is_nothing(kind: pa.DataType) -> None:
    cells = read_integers(
        pa.array(np.array([3, np.nan, 0.5, np.inf], kind.to_pandas_dtype())), "it"
    )
    assert cells.values.type == pa.int64()
    assert (_values(cells), _marked(cells)) == ([3, None, None, None], [False, False, True, True])


@pytest.mark.parametrize("kind", FLOAT_TYPES, ids=str)
def test_floats_of_every_width_are_numbers_and_nan_is_nothing(kind: pa.DataType) -> None:
    cells = read_numbers(
        pa.array(np.array([0.5, np.nan, np.inf, -np.inf], kind.to_pandas_dtype())), "it"
    )
    assert cells.values.type == pa.float64()
    assert (_values(cells), _marked(cells)) == ([0.5, None, None, None], [False, False, True, True])


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_digits_are_integers(kind: pa.DataType) -> None:
    cells = read_integers(
        pa.array([" 7 ", "+7", "-7", "007", "", "  ", None, "7.0", "1e3", "x", "\u0661"], kind),
        "it",
    )
    assert _values(cells) == [7, 7, -7, 7, None, None, None, None, None, None, None]
    assert _marked(cells) == [False] * 7 + [True] * 4


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_digits_are_numbers(kind: pa.DataType) -> None:
    cells = read_numbers(
        pa.array([" 7.5 ", "+7", ".5", "5.", "1e1", "", None, "nan", "inf", "0x1", "7,5"], kind),
        "it",
    )
    assert _values(cells) == [7.5, 7.0, 0.5, 5.0, 10.0, None, None, None, None, None, None]
    assert _marked(cells) == [False] * 7 + [True] * 4


def test_integers_in_a_dictionary_are_taken() -> None:
    assert _values(read_integers(_dictionary([5, None, 5], pa.int16()), "it")) == [5, None, 5]
    assert _values(read_integers(_dictionary(["5", None, "6"], pa.string()), "it")) == [5, None, 6]
    assert _values(read_numbers(_dictionary([0.5, None], pa.float32()), "it")) == [0.5, None]


def test_integers_beyond_64_bits_are_of_no_use() -> None:
    cells = read_integers(pa.array([2**63 - 1, 2**63, 2**64 - 1], pa.uint64()), "it")
    assert (_values(cells), _marked(cells)) == ([2**63 - 1, None, None], [False, True, True])


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_digits_are_taken_as_far_as_64_bits_go(kind: pa.DataType) -> None:
    most = 2**63 - 1
    written = [
        most,
        most + 1,
        -most,
        -most - 1,
        10**19 - 1,
        10**19,
        f"+{'0' * 30}{most}",
        "-0",
        "0" * 30,
    ]
    cells = read_integers(pa.array(map(str, written), kind), "it")
    assert _values(cells) == [most, None, -most, None, None, None, most, 0, 0]
    assert _marked(cells) == [False, True, False, True, True, True, False, False, False]


def test_floats_that_stand_for_several_integers_are_of_no_use() -> None:
    cells = read_integers(pa.array([2.0**53, 2.0**53 + 2, 1e300]), "it")
    assert (_values(cells), _marked(cells)) == ([2**53, None, None], [False, True, True])


@pytest.mark.parametrize("reader", [read_texts, read_integers, read_numbers])
def test_column_without_a_type_is_nothing_at_all(reader: Reader) -> None:
    cells = reader(pa.nulls(3), "it")
    assert (_values(cells), _marked(cells)) == ([None] * 3, [False] * 3)


@pytest.mark.parametrize("kind", OTHER_TYPES, ids=str)
@pytest.mark.parametrize(
    ("reader", "words"),
    [(read_texts, "not text. Write it as strings."), (read_integers, "not integers. Write it as integers."),
     (read_numbers, "not numbers. Write it as floats.")],
)  # fmt: skip
def test_other_types_are_refused_in_a_sentence(
    kind: pa.DataType, reader: Reader, words: str
) -> None:
    with pytest.raises(BadInput) as caught:
        reader(pa.array([], kind), "f.parquet: column 'x'")
    assert str(caught.value) == f"f.parquet: column 'x' is {kind}, {words}"


@pytest.mark.parametrize("kind", FLOAT_TYPES, ids=str)
def test_floats_are_no_text(kind: pa.DataType) -> None:
    with pytest.raises(BadInput, match="not text"):
        read_texts(pa.array([], kind), "it")


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_bytes_that_are_no_utf8_cost_their_own_cell_only(kind: pa.DataType) -> None:
    array = pa.array([b"good", b"\xff\xfe", None, b"", b"\xed\xa0\x80"], pa.binary()).cast(
        pa.large_binary()
    )
    if pa.types.is_string_view(kind):
        array = array.cast(pa.binary_view())
    cells = read_texts(
        array.view(kind) if not pa.types.is_string(kind) else array.cast(pa.binary()).view(kind),
        "it",
    )
    assert _values(cells) == ["good", None, None, "", None]
    assert _marked(cells) == [False, True, False, False, True]


@pytest.mark.parametrize(("reader", "array"), [
    (read_texts, pa.array(["x", "a", None, "b"])),
    (read_integers, pa.array(["x", "1", None, "y"])),
    (read_integers, pa.array([0.5, 1.0, None, 0.5])),
    (read_numbers, pa.array(["x", "1.5", None, "y"])),
])  # fmt: skip
def test_part_of_a_longer_array_reads_as_if_it_were_whole(reader: Reader, array: pa.Array) -> None:
    part = array.slice(1, 2)
    cells, whole = reader(part, "it"), reader(pa.array(part.to_pylist(), array.type), "it")
    assert (_values(cells), _marked(cells)) == (_values(whole), _marked(whole))


def test_first_wrong_cell_of_a_row_stays_marked() -> None:
    wrong = read_integers(pa.array(["x", "1", "y"]), "it").mark_invalid(
        pa.array(["seed", "seed", None]), "width"
    )
    assert wrong.to_pylist() == ["seed", "seed", "width"]
