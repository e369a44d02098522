"""CSV, TSV and JSON Lines are read like the same rows in Parquet, and their mistakes have lines."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from tests.jobs import Columns, image_rows, plan, rejected
from tests.texts import HOSTILE

ROWS = {
    "prompt": ["a red circle", 'a "blue" square, with\na break', None, "é 🔥"],
    "id": ["x", "007", "y", None],
    "seed": ["1", "2", "3", None],
    "guidance": ["2.5", None, "1", "3"],
}


def _csv(columns: dict[str, list[str | None]], delimiter: str = ",", end: str = "\n") -> str:
    def quoted(cell: str | None) -> str:
        return "" if cell is None else '"' + cell.replace('"', '""') + '"'

    lines = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(delimiter.join(map(quoted, line)) + end for line in lines)


def _refused(folder: Path, name: str, content: str | bytes, **settings: object) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput) as caught:
        plan(folder, prompts=str(path), **settings)
    assert not (folder / "out").exists()
    return str(caught.value).replace(f"{folder}/", "")


def _planned(folder: Path, name: str, content: str | bytes, **settings: object) -> pa.Table:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    settings = {"limits": {"rejected_share": 0.5}, **settings}
    return image_rows(plan(folder, prompts=str(path), **settings))


def _expected(folder: Path, columns: Columns) -> pa.Table:
    return image_rows(plan(folder / "parquet", columns, limits={"rejected_share": 0.5}))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "BOM"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize(("name", "delimiter"), [("p.csv", ","), ("P.TSV", "\t")])
def test_delimited_rows_plan_the_images_of_the_same_parquet(
    tmp_path: Path, name: str, delimiter: str, end: str, start: str
) -> None:
    content = start + _csv(ROWS, delimiter, end)
    assert _planned(tmp_path, name, content) == _expected(tmp_path, ROWS)


@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "BOM"])
def test_json_lines_plan_the_images_of_the_same_parquet(tmp_path: Path, start: str) -> None:
    lines = [
        {"prompt": "a red circle", "id": "x", "seed": 1, "guidance": 2.5},
        {"prompt": 'a "blue" square, with\na break', "id": "007", "seed": 2},
        {"seed": 3, "id": "y", "guidance": 1},
        {"prompt": "é 🔥", "id": None, "guidance": 3},
    ]
    content = start + "\n\n".join(map(json.dumps, lines))
    assert _planned(tmp_path, "p.jsonl", content) == _expected(tmp_path, ROWS)


def test_hostile_text_goes_through_every_format_unchanged(tmp_path: Path) -> None:
    texts = [text for text in HOSTILE if text.strip("\r\n")]
    columns: dict[str, list[str | None]] = {"prompt": [f"x{text}y" for text in texts]}
    lines = "\n".join(json.dumps({"prompt": text}) for text in columns["prompt"])
    for name, content in (("p.csv", _csv(columns)), ("p.jsonl", lines)):
        folder = tmp_path / name
        folder.mkdir()
        rows = _planned(folder, name, content)
        assert rows["prompt"].to_pylist() == columns["prompt"]


def test_bytes_that_are_no_utf8_cost_their_rows_and_no_others(tmp_path: Path) -> None:
    contents = {
        "p.csv": b"prompt,id\ngood,1\n\xff\xfe,2\nfine,3\n",
        "p.jsonl": b'{"prompt": "good"}\n{"prompt": "\xff"}\n{"prompt": "fine"}\n',
        "q.jsonl": b'{"prompt": "good"}\n{"prompt": "\\ud83d"}\n{"prompt": "fine"}\n',
        "r.jsonl": b'{"prompt": "good"}\n{"prompt": "\\udcc3\\udca9"}\n{"prompt": "fine"}\n',
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        planned = plan(tmp_path, prompts=f"{tmp_path}/{name}", limits={"rejected_share": 0.5})
        assert image_rows(planned)["prompt"].to_pylist() == ["good", "fine"]
        (row,) = rejected(planned)
        assert (row["row_in_file"], row["column_name"], row["reason"]) == (
            1,
            "prompt",
            "is not valid UTF-8",
        )


def test_columns_of_csv_are_carried_as_text_and_those_of_json_as_they_are(tmp_path: Path) -> None:
    rows = _planned(tmp_path, "p.csv", "prompt, n\na,07\nb,\n", carry=["n"])
    assert rows["n"].to_pylist() == ["07", None]
    lines = (
        '{"prompt": "a", "n": 7, "f": 1, "b": true, "mix": 1, "nested": {"x": ["é"]}}\n'
        '{"prompt": "b", "n": null, "f": 2.5, "b": false, "mix": "x"}\n'
    )
    rows = _planned(tmp_path, "p.jsonl", lines, carry=["n", "f", "b", "mix", "nested"])
    assert rows.select(["n", "f", "b", "mix", "nested"]).to_pylist() == [
        {"n": 7, "f": 1.0, "b": True, "mix": "1", "nested": '{"x": ["é"]}'},
        {"n": None, "f": 2.5, "b": False, "mix": "x", "nested": None},
    ]


def test_files_of_json_lines_share_the_types_of_their_columns(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.jsonl").write_text('{"prompt": "a", "n": null}\n')
    (tmp_path / "in/2.jsonl").write_text('{"prompt": "b", "n": 2}\n')
    (tmp_path / "in/3.jsonl").write_text('{"prompt": "c"}\n')
    (tmp_path / "in/4.jsonl").write_text("\n \n")  # without rows
    rows = image_rows(plan(tmp_path, prompts=f"{tmp_path}/in", carry=["n"]))
    assert rows["n"].to_pylist() == [None, 2, None]


MALFORMED: dict[str, tuple[str, str | bytes, str]] = {
    "too many fields": (
        "p.csv",
        "prompt,seed\na,1\na, b,2\n",
        "p.csv: line 3 has 3 fields, and the header has 2. Put quotation marks around a field "
        "that contains the separator, or add what is absent.",
    ),
    "quotation mark not closed": (
        "p.csv",
        'prompt,seed\na,1\n"b,2\nc,3\n',
        "p.csv: line 3 is malformed (unexpected end of data). Close each quotation mark, and write "
        "those inside a quoted field twice.",
    ),
    "no header": (
        "p.csv",
        "a red circle\na blue square\n",
        "p.csv: has no column 'prompt' (it has a red circle). Set columns.prompt.",
    ),
    "semicolons": (
        "p.csv",
        "\N{BYTE ORDER MARK}Caption;uid\na red circle;1\n",
        "p.csv: has no column 'prompt' (it has Caption;uid). Set columns.prompt.",
    ),
    "first line broken": (
        "p.jsonl",
        '{"prompt": a}\n{"prompt": "b"}\n',
        "p.jsonl: line 1 is not JSON (Expecting value at character 12). Correct it.",
    ),
    "only a header": ("p.csv", "prompt,seed\n", "p.csv: has no rows. Check `prompts`."),
    "no byte": ("p.csv", "", "p.csv: is empty. Check `prompts`."),
    "UTF-16": (
        "p.csv",
        "prompt\na\n".encode("utf-16"),
        "p.csv: is UTF-16. Save it as UTF-8.",
    ),
    "name that is not valid UTF-8": (
        "p.csv",
        b"prompt,caf\xe9\na,b\n",
        r"p.csv: the name of a column, 'caf\udce9', is no UTF-8. Save the file as UTF-8.",
    ),
    "cut off": (
        "p.jsonl",
        '{"prompt": "a"}\n{"prompt": "b',
        "p.jsonl: line 2 is not JSON (Unterminated string starting at character 12). Correct it.",
    ),
    "no object": (
        "p.jsonl",
        '{"prompt": "a"}\n[1]\n',
        'p.jsonl: line 2 is not an object, such as {"prompt": "a red circle"}. '
        "Write one for each row.",
    ),
    "numbers beyond JSON": (
        "p.jsonl",
        '{"prompt": "a", "guidance": NaN}\n',
        "p.jsonl: line 1 is not JSON (NaN is not JSON). Correct it.",
    ),
    "nested prompt": (
        "p.ndjson",
        '{"prompt": "a"}\n\n{"prompt": {"en": "b"}}\n',
        "p.ndjson: line 3: 'prompt' is an object. Write text or a number.",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_file_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    file, content, message = MALFORMED[name]
    assert _refused(tmp_path, file, content) == message


OBJECTS: list[dict[str, object]] = [
    {"prompt": "a red circle", "seed": 1},
    {"prompt": "a blue\nsquare", "seed": 2},
]
LISTS = {
    "a list of objects": ("p.json", json.dumps(OBJECTS, indent=2)),
    "a list in an object": ("p.json", json.dumps({"version": 3, "prompts": OBJECTS})),
    "objects by their ids": ("p.json", json.dumps(dict(zip("ab", OBJECTS, strict=True)))),
    "a list of texts": ("p.json", json.dumps([row["prompt"] for row in OBJECTS])),
    "texts on lines": ("p.jsonl", "\n".join(json.dumps(row["prompt"]) for row in OBJECTS)),
    "one object alone": ("p.json", json.dumps(OBJECTS[0], indent=1)),
}


@pytest.mark.parametrize("name", LISTS)
def test_list_in_json_is_read_as_its_rows(tmp_path: Path, name: str) -> None:
    file, content = LISTS[name]
    rows = _planned(tmp_path, file, content, carry=[])
    expected = ["a red circle", "a blue\nsquare"][: 1 if name == "one object alone" else 2]
    assert rows["prompt"].to_pylist() == expected
    if name == "objects by their ids":
        assert rows["id"].to_pylist() == ["a", "b"]


def test_lines_of_a_text_are_prompts_as_they_are(tmp_path: Path) -> None:
    content = '\ufeffa red circle, "blue"\r\n\r\n  a cat\u2028with a hat\nprompt of the day'
    rows = _planned(tmp_path, "p.txt", content)
    assert rows["prompt"].to_pylist() == [
        'a red circle, "blue"',
        "  a cat\u2028with a hat",
        "prompt of the day",
    ]


@pytest.mark.parametrize(
    "content",
    [
        'prompt,seed\n"a red circle,1\na blue square",2\n',
        'prompt,seed\na cat,1\n"a red circle,2\na blue square,3\na green hat",4\n',
        'id,prompt\n1,"a red circle\n2,a blue square"\n',
    ],
)
def test_cell_that_swallowed_rows_is_refused_with_its_line(tmp_path: Path, content: str) -> None:
    assert "p.csv: line" in (message := _refused(tmp_path, "p.csv", content))
    assert "has a quoted cell that holds other rows" in message


@pytest.mark.parametrize(
    "prompt",
    ['a sign that says "hello"', '"Peaks", "hello"', "a city,\nby night, from above,\nin rain"],
)
def test_cell_that_is_quoted_as_it_should_be_stays(tmp_path: Path, prompt: str) -> None:
    cell = '"' + prompt.replace('"', '""') + '"'
    rows = _planned(tmp_path, "p.csv", f"id,style,seed,prompt\n1,oil,2,{cell}\n")
    assert rows["prompt"].to_pylist() == [prompt]
