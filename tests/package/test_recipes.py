"""The recipes in module docstrings name files, classes and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = (
    "steps/job/columns.py",
    "steps/runs/formats.py",
    "workflows/doctor/__init__.py",
    "workflows/templates/pod_retries.py",
)
FILE = re.compile(r"`([\w./-]+\.py)`")
# A name or two with the file that has them: `batch_shape` (`steps/runs/image.py`).
NAMES = re.compile(r"((?:`\w+`(?:, | and | of )?)+) (?:\(|in |of )`([\w./-]+\.py)`")
# Files that each user of the recipe has under another folder.
PROJECT_FILES = {
    path.name
    for folder in ("steps", "workflows", "tests")
    for path in (ROOT / folder).rglob("*.py")
}


def recipe(module: str) -> str:
    """The docstring of a module, as one line."""
    text = ast.get_docstring(ast.parse((ROOT / module).read_text())) or ""
    return " ".join(text.split())


def locate(file: str, module: str) -> Path:
    """The file that a recipe names by its path, or by its name beside the module."""
    return ROOT / file if "/" in file else (ROOT / module).with_name(file)


@pytest.mark.parametrize("module", RECIPES)
def test_files_that_a_recipe_names_exist(module: str) -> None:
    files = FILE.findall(recipe(module))
    assert files
    for file in files:
        assert locate(file, module).is_file() or file in PROJECT_FILES, file


@pytest.mark.parametrize("module", RECIPES)
def test_names_that_a_recipe_places_in_a_file_are_in_it(module: str) -> None:
    places = NAMES.findall(recipe(module))
    assert places
    for names, file in places:
        source = locate(file, module).read_text()
        for name in re.findall(r"`(\w+)`", names):
            definition = rf"^ *(?:def |class )?{name}\b(?:[(:\[]| =)"
            assert re.search(definition, source, re.MULTILINE), f"{name} in {file}"
