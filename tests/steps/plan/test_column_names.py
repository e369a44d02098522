"""A header is read as a whole, in any spelling, and a column that is not meant is left unread."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.step import make_plan
from tests.jobs import image_rows, job, plan, rejected, write

ROW = {
    "PROMPT": "a red circle",
    "\ufeffnegative-prompt": "blurry",
    "Seed ": "5",
    "CFG_Scale": "2.5",
    "Sampling Steps": "3",
    "Sampler name": "euler",
    "Num Images": "1",
    " WIDTH": "64",
}
READ = {
    "prompt": "a red circle",
    "negative_prompt": "blurry",
    "seed": 5,
    "guidance": 2.5,
    "steps": 3,
    "sampler": "euler",
    "width": 64,
}


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_header_in_another_spelling_is_read_as_a_whole(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({name: [value] for name, value in ROW.items()}), path)
    elif suffix == ".jsonl":
        path.write_text(json.dumps(ROW))
    else:
        path.write_text(f"{','.join(ROW)}\n{','.join(ROW.values())}\n")
    planned = plan(tmp_path, prompts=str(path))
    (row,) = image_rows(planned).to_pylist()
    assert {name: row[name] for name in READ} == READ
    assert {*planned.guessed_columns.values()} == {*READ, "images"}


def test_two_names_that_mean_the_same_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        plan(tmp_path, {"Prompt": ["a"], "CFG": [1], "Guidance Scale": [2]})
    assert str(caught.value).endswith(
        "columns 'CFG' and 'Guidance Scale' may each be guidance. Set columns.guidance to one of "
        "them."
    )


@pytest.mark.parametrize("ours", ["id", "seed", "steps", "source_image"])
def test_unread_column_changes_no_image(tmp_path: Path, ours: str) -> None:
    plain = image_rows(plan(tmp_path / "plain", {"prompt": ["a", "b"]}))
    columns = {"prompt": ["a", "b"], ours: ["first of two", "first of two"]}
    with pytest.raises(BadInput, match=rf"To leave {ours} unread, set `columns: {{{ours}: null}}`"):
        plan(tmp_path / "read", columns, columns={})
    unread = plan(tmp_path / "unread", columns, columns={ours: None}, carry=[ours])
    rows = image_rows(unread)
    assert rows["image_id"].equals(plain["image_id"])
    assert rows[f"input_{ours}"].to_pylist() == ["first of two"] * 2


def test_table_of_a_template_leaves_columns_unread_and_spells_others(tmp_path: Path) -> None:
    columns = {"city": ["Rome", "Oslo"], "ID": ["x", "x"], "Seed": [7, 8], "seed_note": ["", ""]}
    table = write(tmp_path / "cities.parquet", columns)
    prompts = {"template": "a view of {{ city }}", "table": table}
    settings = job(tmp_path, columns={"id": None}, carry=["ID"], prompts=prompts)
    rows = image_rows(make_plan(settings))
    assert rows.select(["seed", "id", "input_ID"]).to_pylist() == [
        {"seed": 7, "id": None, "input_ID": "x"},
        {"seed": 8, "id": None, "input_ID": "x"},
    ]


def test_rejected_row_of_a_text_file_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text('prompt,seed\n"a\nb",1\n\nc,x\n')
    planned = plan(tmp_path, prompts=str(path), limits={"rejected_share": 1})
    (row,) = rejected(planned)
    assert (row["row_in_file"], row["line"]) == (1, 5)
    assert "the first is row 1 on line 5" in planned.rejection_causes[0].describe()
