"""The row of an image as JSON, whatever types it carries."""

import json

import pyarrow as pa
import pytest

from imagekiln.steps.runs.row_values import json_lines


def line(value: object, kind: pa.DataType) -> object:
    [text] = json_lines(pa.table({"tag": pa.array([value], kind)}))
    assert text.endswith(b"}\n")
    return json.loads(text)["tag"]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, pa.string(), None),
        (b"\0\xff", pa.binary(), "AP8="),
        ([("k", 1)], pa.map_(pa.string(), pa.int64()), [{"key": "k", "value": 1}]),
    ],
    ids=str,
)
def test_value_of_any_type_that_can_be_carried_is_json(
    value: object, kind: pa.DataType, expected: object
) -> None:
    assert line(value, kind) == expected


def test_image_is_one_line_in_the_order_of_the_columns() -> None:
    lines = list(json_lines(pa.table({"b": ["two\nlines", "x"], "a": [1, 2]})))
    assert lines == [b'{"b": "two\\nlines", "a": 1}\n', b'{"b": "x", "a": 2}\n']
