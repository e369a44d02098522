"""Quotation marks that do not quote, and cells that hold other rows, are refused or told."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.step import PlanResult
from tests.jobs import image_rows, plan


def _plan(folder: Path, content: str, name: str = "p.csv") -> PlanResult:
    path = folder / name
    path.write_text(content)
    return plan(folder, prompts=str(path), limits={"rejected_share": 1})


def _prompts(planned: PlanResult) -> list[str]:
    prompts: list[str] = image_rows(planned)["prompt"].to_pylist()
    return prompts


@pytest.mark.parametrize(
    "content",
    [
        'prompt,seed\n"a red circle,1\na blue square",2\n',
        'prompt,seed\na cat,1\n"a red circle,2\na blue square,3\na green hat",4\n',
        'id,prompt\n1,"a red circle\n2,a blue square"\n',
        'id,prompt,seed\n1,"a red circle,5\n2,a blue square",6\n',
    ],
)
def test_cell_that_swallowed_rows_is_refused_with_its_line(tmp_path: Path, content: str) -> None:
    with pytest.raises(BadInput, match=r"line [23] has a quoted cell that holds other rows"):
        _plan(tmp_path, content)


@pytest.mark.parametrize(
    ("cell", "prompt"),
    [
        ('a red circle"', 'a red circle"'),
        ('a 5" disk', 'a 5" disk'),
        (' "a red circle"', ' "a red circle"'),
        ('a sign that says "hello"', 'a sign that says "hello"'),
    ],
)
def test_quotation_marks_that_quote_nothing_are_named(
    tmp_path: Path, cell: str, prompt: str
) -> None:
    planned = _plan(tmp_path, f"prompt,seed\na cat,1\n{cell},2\n")
    assert _prompts(planned) == ["a cat", prompt]
    assert planned.notes[0] == (
        f"{tmp_path}/p.csv: 1 row with quotation marks that are drawn as part of a cell; the first "
        f"is line 3, read as {prompt!r}."
    )


@pytest.mark.parametrize(
    "prompt",
    [
        'a sign that says "hello"',
        '"Peaks" on a poster, "hello" below',
        "a city,\nby night, from above,\nin rain",
        "a \u201ccurly\u201d sign",
        "it's 'single'",
    ],
)
def test_cell_that_is_quoted_as_it_should_be_is_taken_without_a_word(
    tmp_path: Path, prompt: str
) -> None:
    cell = '"' + prompt.replace('"', '""') + '"'
    planned = _plan(tmp_path, f"id,style,seed,prompt\n1,oil,2,{cell}\n")
    assert (_prompts(planned), planned.notes) == ([prompt], ())


def test_cell_with_line_breaks_that_may_be_rows_is_named(tmp_path: Path) -> None:
    planned = _plan(tmp_path, 'prompt\na cat\n"a red circle\na blue square"\n')
    assert _prompts(planned) == ["a cat", "a red circle\na blue square"]
    (note,) = planned.notes
    assert "1 row with line breaks in a cell that may be other rows; the first is line 3" in note
