"""The JSON sidecar of an image, whatever types a row carries."""

import datetime
import json

import pyarrow as pa
import pytest

from imagekiln.steps.runs.sidecar import sidecar_lines, to_rows
from tests.texts import HOSTILE


def line(value: object, kind: pa.DataType) -> object:
    [text] = sidecar_lines(pa.table({"tag": pa.array([value], kind)}))
    assert text.endswith(b"}\n")
    return json.loads(text)["tag"]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, pa.string(), None),
        (2**63, pa.uint64(), 2**63),
        (0.1, pa.float64(), 0.1),
        (float("nan"), pa.float64(), None),
        (float("-inf"), pa.float32(), None),
        (True, pa.bool_(), True),
        (b"\0\xff", pa.binary(), "AP8="),
        (datetime.date(2026, 11, 22), pa.date32(), "2026-11-22"),
        (1, pa.timestamp("ns"), "1970-01-01 00:00:00.000000001"),
        (7, pa.timestamp("us", "Mars/Phobos"), "1970-01-01 00:00:00.000007Z"),
        ("a", pa.dictionary(pa.int8(), pa.string()), "a"),
        ([1, None], pa.list_(pa.int64()), [1, None]),
        ({"x": [float("nan")]}, pa.struct([("x", pa.list_(pa.float64()))]), {"x": [None]}),
        ([("k", 1)], pa.map_(pa.string(), pa.int64()), [{"key": "k", "value": 1}]),
    ],
    ids=str,
)
def test_value_of_any_type_that_can_be_carried_is_json(
    value: object, kind: pa.DataType, expected: object
) -> None:
    assert line(value, kind) == expected


@pytest.mark.parametrize("text", HOSTILE)
def test_text_comes_back_as_it_was(text: str) -> None:
    assert line(text, pa.string()) == text


def test_image_is_one_line_in_the_order_of_the_columns() -> None:
    lines = list(sidecar_lines(pa.table({"b": ["two\nlines", "x"], "a": [1, 2]})))
    assert lines == [b'{"b": "two\\nlines", "a": 1}\n', b'{"b": "x", "a": 2}\n']


def test_row_with_a_time_that_python_lacks_has_it_as_text() -> None:
    days = pa.array([0, 2**31 - 1], pa.date32())
    nested = pa.ListArray.from_arrays([0, 1, 2], days)
    table = pa.table({"n": [1, 2], "day": days, "days": nested})
    beyond = "<value out of range: 2147483647>"
    assert to_rows(table) == [
        {"n": 1, "day": "1970-01-01", "days": ["1970-01-01"]},
        {"n": 2, "day": beyond, "days": [beyond]},
    ]
    day = datetime.date(1970, 1, 1)
    assert to_rows(table.slice(0, 1)) == [{"n": 1, "day": day, "days": [day]}]
