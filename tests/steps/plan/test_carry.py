from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.tables import RESERVED_COLUMNS
from tests.jobs import image_rows, plan, rejected, write

AT = datetime(2026, 7, 1, 3, 4, 5, 678_901, tzinfo=UTC)
KINDS = [
    (pa.bool_(), True), (pa.int8(), -7), (pa.uint64(), 2**64 - 1), (pa.float32(), 0.5), (pa.float64(), float("inf")),
    (pa.string(), "it's\0"), (pa.large_string(), "x"), (pa.string_view(), "x"), (pa.binary(), b"\xff\0"),
    (pa.large_binary(), b"\xff"), (pa.binary_view(), b"\xff"), (pa.binary(4), b"1234"),
    (pa.decimal128(20, 3), Decimal("1.250")), (pa.date32(), date(2026, 7, 1)), (pa.time64("us"), time(3, 4, 5)),
    (pa.timestamp("ms"), datetime(2026, 7, 1, 3)), (pa.timestamp("us", "UTC"), AT),  # noqa: DTZ001
    (pa.timestamp("us", "Europe/Berlin"), AT), (pa.list_(pa.string()), ["a", None]),
    (pa.large_list(pa.int32()), [1]), (pa.list_(pa.float32(), 2), [0.5, 1.5]),
    (pa.struct([("a", pa.int64()), ("b c", pa.list_(pa.string()))]), {"a": 1, "b c": ["x"]}),
    (pa.map_(pa.string(), pa.int64()), [("k", 1)]), (pa.null(), None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), KINDS, ids=lambda value: str(value)[:30])
def test_carried_column_keeps_type_and_values(
    tmp_path: Path, kind: pa.DataType, value: object
) -> None:
    wanted = pa.array([value, None], kind)
    rows = image_rows(plan(tmp_path, {"prompt": ["a", "b"], "x": wanted}, carry=["x"]))
    assert rows["x"].type == pa.table({"x": wanted}).schema.field("x").type
    assert rows["x"].to_pylist() == wanted.to_pylist()


def test_carried_dictionary_stays_one_whatever_its_values_in_each_file(tmp_path: Path) -> None:
    for place, values in enumerate([["x", "y", "x"], ["z", None, "x"]]):
        columns = {
            "prompt": [f"{place}-{n}" for n in range(3)],
            "x": pa.array(values).dictionary_encode(),
        }
        write(tmp_path / f"in/{place}.parquet", columns)
    rows = image_rows(plan(tmp_path, prompts=f"{tmp_path}/in/*.parquet", carry=["x"]))
    assert pa.types.is_dictionary(rows["x"].type)
    assert rows["x"].to_pylist() == ["x", "y", "x", "z", None, "x"]


def test_carried_extension_type_is_kept_as_it_is_stored(tmp_path: Path) -> None:
    uuid = UUID("12345678123456781234567812345678")
    columns = {
        "prompt": ["a"],
        "u": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.bytes], pa.binary(16))),
        "j": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}'])),
    }
    rows = image_rows(plan(tmp_path, columns, carry=["u", "j"]))
    assert rows.select(["u", "j"]).to_pylist() == [{"u": uuid.bytes, "j": '{"a": 1}'}]


@pytest.mark.parametrize(
    "kind",
    [
        pa.float16(),
        pa.decimal256(60, 2),
        pa.duration("us"),
        pa.list_view(pa.int32()),
        pa.list_(pa.float16()),
        pa.struct([("a", pa.duration("s"))]),
    ],
    ids=str,
)
def test_type_that_cannot_be_carried_is_refused_in_a_sentence(
    tmp_path: Path, kind: pa.DataType
) -> None:
    with pytest.raises(
        BadInput, match=r"column 'x' is .*, which cannot be carried\. Write it as another type\.$"
    ):
        plan(tmp_path, {"prompt": ["a"], "x": pa.nulls(1, kind)}, carry=["x"])


@pytest.mark.parametrize(
    "name",
    ["a b", 'a"b', "it's", "a;b", "'); DROP TABLE images; --", "a.b", "two\nlines", "Prompt", "ROW", "rule", "wrong",
     "carry_0", "carry_1", "content", "*", "{x}", "1", "s\u00e4mpler", "x" * 500],
    ids=repr,
)  # fmt: skip
def test_carried_column_may_be_called_anything(tmp_path: Path, name: str) -> None:
    columns = {"prompt": ["a", "b"], "first": [1, 2], name: [3, 4]}
    rows = image_rows(plan(tmp_path, columns, carry=["first", name]))
    assert (rows["first"].to_pylist(), rows[name].to_pylist()) == ([1, 2], [3, 4])


@pytest.mark.parametrize("name", sorted(RESERVED_COLUMNS))
def test_name_of_a_column_of_the_dataset_cannot_be_carried(tmp_path: Path, name: str) -> None:
    columns = {"text": ["a"], name: ["b"]}
    with pytest.raises(BadInput) as caught:
        plan(tmp_path, columns, columns={"prompt": "text"}, carry=[name])
    assert (
        str(caught.value)
        == f"carry: {name!r} is a column of the dataset itself. Rename it in the input."
    )


def test_column_to_carry_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no column 'nowhere' to carry\. Correct `carry`\.$"):
        plan(tmp_path, {"prompt": ["a"]}, carry=["nowhere"])


def test_column_to_carry_must_have_one_type_in_all_files(tmp_path: Path) -> None:
    write(tmp_path / "in/1.parquet", {"prompt": ["a"], "x": [1]})
    write(tmp_path / "in/2.parquet", {"prompt": ["a"], "x": ["1"]})
    with pytest.raises(
        BadInput,
        match=r"2\.parquet: the columns to carry have other types than in .*1\.parquet\. Give",
    ):
        plan(tmp_path, prompts=f"{tmp_path}/in/*.parquet", carry=["x"])


def test_column_that_may_lack_values_in_one_file_only_is_no_other_type(tmp_path: Path) -> None:
    for place, nullable in enumerate([True, False]):
        schema = pa.schema(
            [pa.field("prompt", pa.string()), pa.field("x", pa.int64(), nullable=nullable)]
        )
        write(
            tmp_path / f"in/{place}.parquet",
            pa.table({"prompt": [f"p{place}"], "x": [1]}, schema=schema),
        )
    assert image_rows(plan(tmp_path, prompts=f"{tmp_path}/in/*.parquet", carry=["x"]))[
        "x"
    ].to_pylist() == [1, 1]


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
    assert [(row["row"], row["column"], row["reason"]) for row in rejected(planned)] == [
        (1, "carry", "is no UTF-8 in one of its columns")
    ]


def test_deeper_bytes_that_are_no_utf8_are_refused_in_a_sentence(tmp_path: Path) -> None:
    inner = pa.array([b"x", b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(
        BadInput, match=r"column 'x' has text that is no UTF-8\. Correct it, or do not carry it\.$"
    ):
        plan(tmp_path, {"prompt": ["a"], "x": pa.ListArray.from_arrays([0, 2], inner)}, carry=["x"])


def test_what_is_carried_changes_no_image(tmp_path: Path) -> None:
    columns = {"prompt": ["a", "b"], "x": [1, 2]}
    plain, carried = plan(tmp_path / "1", columns), plan(tmp_path / "2", columns, carry=["x"])
    assert image_rows(plain) == image_rows(carried).drop_columns(["x"])


def test_duplicates_carry_what_their_first_row_has(tmp_path: Path) -> None:
    planned = plan(tmp_path, {"prompt": ["a", "a"], "x": ["first", "second"]}, carry=["x"])
    assert image_rows(planned)["x"].to_pylist() == ["first"]
