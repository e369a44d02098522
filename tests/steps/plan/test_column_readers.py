"""Columns of every Arrow type, read or carried."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.columns import Cells, read_integers, read_numbers
from tests.jobs import image_rows, plan, rejected, write

Reader = Callable[[pa.Array, str], Cells]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
FLOAT_TYPES = [pa.float32(), pa.float64()]


def _values(cells: Cells) -> list[object]:
    values: list[object] = cells.values.to_pylist()
    return values


def _marked(cells: Cells) -> list[bool]:
    """Whether each cell was of no use."""
    wrong = cells.mark_invalid(pa.nulls(len(cells.values), pa.string()), "it")
    return [value is not None for value in wrong.to_pylist()]


@pytest.mark.parametrize("kind", FLOAT_TYPES, ids=str)
def test_whole_floats_are_integers_and_nan_is_nothing(kind: pa.DataType) -> None:
    cells = read_integers(
        pa.array(np.array([3, np.nan, 0.5, np.inf], kind.to_pandas_dtype())), "it"
    )
    assert cells.values.type == pa.int64()
    assert (_values(cells), _marked(cells)) == ([3, None, None, None], [False, False, True, True])


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_digits_are_integers(kind: pa.DataType) -> None:
    cells = read_integers(
        pa.array([" 7 ", "+7", "-7", "007", "", "  ", None, "7.0", "1e3", "x", "\u0661"], kind),
        "it",
    )
    assert _values(cells) == [7, 7, -7, 7, None, None, None, 7, None, None, None]
    assert _marked(cells) == [False] * 8 + [True] * 3


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_digits_are_numbers(kind: pa.DataType) -> None:
    cells = read_numbers(
        pa.array([" 7.5 ", "+7", ".5", "5.", "1e1", "", None, "nan", "inf", "0x1", "7,5"], kind),
        "it",
    )
    assert _values(cells) == [7.5, 7.0, 0.5, 5.0, 10.0, None, None, None, None, None, None]
    assert _marked(cells) == [False] * 7 + [True] * 4


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
    assert _values(cells) == [most, None, -most, -most - 1, None, None, most, 0, 0]
    assert _marked(cells) == [False, True, False, False, True, True, False, False, False]


AT = datetime(2026, 7, 1, 3, 4, 5, 678_901, tzinfo=UTC)
KINDS = [
    (pa.bool_(), True),
    (pa.uint64(), 2**64 - 1),
    (pa.float32(), 0.5),
    (pa.large_string(), "x"),
    (pa.binary(), b"\xff\0"),
    (pa.decimal128(20, 3), Decimal("1.250")),
    (pa.date32(), date(2026, 7, 1)),
    (pa.timestamp("us", "Europe/Berlin"), AT),
    (pa.list_(pa.string()), ["a", None]),
    (pa.struct([("a", pa.int64()), ("b c", pa.list_(pa.string()))]), {"a": 1, "b c": ["x"]}),
    (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    (pa.null(), None),
]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("kind", "value"), KINDS, ids=lambda value: str(value)[:30])
def test_carried_column_keeps_type_and_values(
    tmp_path: Path, kind: pa.DataType, value: object
) -> None:
    column = pa.array([value, None], kind)
    rows = image_rows(plan(tmp_path, {"prompt": ["a", "b"], "x": column}, carry=["x"]))
    assert rows["x"].type == pa.table({"x": column}).schema.field("x").type
    assert rows["x"].to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    "kind",
    [pa.duration("us"), pa.list_(pa.float16()), pa.struct([("", pa.int32())])],
    ids=str,
)
def test_type_that_cannot_be_carried_is_refused_in_a_sentence(
    tmp_path: Path, kind: pa.DataType
) -> None:
    with pytest.raises(
        BadInput, match=r"column 'x' is .*, which cannot be carried\. Write it as another type\.$"
    ):
        plan(tmp_path, {"prompt": ["a"], "x": pa.nulls(1, kind)}, carry=["x"])


def test_carried_columns_differ_in_more_than_case(tmp_path: Path) -> None:
    columns = {"prompt": ["a"], "Source": ["b"], "source": ["c"]}
    with pytest.raises(BadInput, match="'Source' and 'source' would be the same column"):
        plan(tmp_path, columns, carry=["Source", "source"])
    assert image_rows(plan(tmp_path, columns, carry=["source"]))["source"].to_pylist() == ["c"]


def test_column_to_carry_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"has no column 'nowhere' \(it has prompt\)\. Correct `carry`\.$"
    ):
        plan(tmp_path, {"prompt": ["a"]}, carry=["nowhere"])


def test_column_to_carry_must_have_one_type_in_all_files(tmp_path: Path) -> None:
    write(tmp_path / "in/1.parquet", {"prompt": ["a"], "x": [1]})
    write(tmp_path / "in/2.parquet", {"prompt": ["a"], "x": ["1"]})
    with pytest.raises(
        BadInput,
        match=r"2\.parquet: the columns to carry have other types than in .*1\.parquet\. Give",
    ):
        plan(tmp_path, prompts=f"{tmp_path}/in/*.parquet", carry=["x"])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_carried_bytes_that_are_no_utf8_cost_their_row_only(
    tmp_path: Path, kind: pa.DataType
) -> None:
    values = pa.array(
        [b"x", b"\xff", None], pa.binary() if pa.types.is_string(kind) else pa.large_binary()
    ).view(kind)
    planned = plan(
        tmp_path,
        {"prompt": ["a", "b", "c"], "x": values},
        carry=["x"],
        limits={"rejected_share": 1},
    )
    assert image_rows(planned)["x"].to_pylist() == ["x", None]
    assert [(row["input_row"], row["column_name"], row["reason"]) for row in rejected(planned)] == [
        (1, "x", "is not valid UTF-8")
    ]
