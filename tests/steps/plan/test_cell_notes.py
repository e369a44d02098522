"""Cells that mean something in other tools are told: no value, or syntax that is drawn as text."""

from pathlib import Path

import pytest

from tests.jobs import image_rows, plan


@pytest.mark.parametrize("marker", ["-1", -1, -1.0, "random", "N/A", "nan", "null", " Auto ", "-"])
@pytest.mark.parametrize("column", ["seed", "guidance"])
def test_marker_of_no_value_is_an_empty_cell(
    tmp_path: Path, column: str, marker: str | float
) -> None:
    plain = image_rows(plan(tmp_path / "plain", {"prompt": ["a"]}))
    planned = plan(tmp_path / "marked", {"prompt": ["a"], column: [marker]})
    assert image_rows(planned)["image_id"].equals(plain["image_id"])
    (note,) = planned.notes
    assert note == f"Column {column!r}: -1, none or the like in 1 cell is read as empty."


def test_other_wrong_numbers_are_rejected_with_the_remedy(tmp_path: Path) -> None:
    columns = {"prompt": ["a", "b"], "steps": [0, 2]}
    planned = plan(tmp_path, columns, limits={"rejected_share": 1})
    (cause,) = planned.rejection_causes
    assert (cause.setting, cause.value) == ("steps", "0")


@pytest.mark.parametrize(
    ("prompt", "label"),
    [
        ("a cat <lyco:old:1>", "<lora:...>"),
        ("((a cat)) at night", "(word:1.3)"),
        ("oil painting of {Prompt}", "{prompt}"),
        ("a {red|blue} hat", "{a|b}"),
        ("a __colour__ hat", "__wildcard__"),
        ("a cat --ar 16:9", "--option"),
        ("nan", "nan, null or None alone"),
        ("hot dog::2 cat", "(word:1.3)"),
    ],
)
def test_syntax_of_other_tools_is_drawn_as_text_and_counted(
    tmp_path: Path, prompt: str, label: str
) -> None:
    planned = plan(tmp_path, {"prompt": ["a cat", prompt, prompt], "seed": [1, 2, 3]})
    assert image_rows(planned)["prompt"].to_pylist() == ["a cat", prompt, prompt]
    (note,) = planned.notes
    assert f"{label} (2 texts" in note
