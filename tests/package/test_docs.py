"""What the README and the docs show is what the program takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import click
import pytest
import yaml

from imagekiln.steps.job.prices import read_price_file
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.runs.tables import (
    IMAGE_ROW_SCHEMA,
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    ORIGIN_SCHEMA,
    OUTCOME_SCHEMA,
)
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.profiles.loader import load_profile

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!http|#)([^)#]+)")


def blocks(language: str) -> Iterator[str]:
    """Every block of this language in every page."""
    for page in PAGES:
        yield from (text for kind, text in BLOCK.findall(page.read_text()) if kind == language)


def commands() -> list[list[str]]:
    """Every `imagekiln ...` in the pages' shell blocks and in the commands' help, as words."""
    help_texts = [command.epilog or "" for command in main.commands.values()]
    texts = [text.replace("\\\n", "") for text in [*blocks("sh"), *help_texts]]
    lines = [shlex.split(line, comments=True) for text in texts for line in text.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["imagekiln"]]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_shown_command_is_one(words: list[str]) -> None:
    command = main.commands[words[0]]
    arguments = list(takewhile(lambda word: word not in (">", "|"), words[1:]))
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("-")} <= options
    assert isinstance(command.make_context(words[0], arguments.copy()), click.Context)


def test_shown_make_targets_are_there() -> None:
    shown = {
        word for text in blocks("sh") for word in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
    }
    assert shown
    assert shown <= make_targets()


@pytest.mark.parametrize("text", list(blocks("yaml")))
def test_shown_job_or_profile_is_one(text: str, tmp_path: Path) -> None:
    if "prompts" in yaml.safe_load(text):
        assert validate_job(yaml.safe_load(text)).name
    elif "prices" in yaml.safe_load(text):
        (tmp_path / "prices.yaml").write_text(text)
        assert read_price_file(str(tmp_path / "prices.yaml")).prices
    else:
        (tmp_path / "own.yaml").write_text(text)
        assert load_profile(str(tmp_path / "own.yaml")).name == "own"


def imports(source: str) -> Iterator[tuple[str, str]]:
    """What a Python block takes from this package: modules, and names in them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("imagekiln"):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "imagekiln":
            yield "imagekiln", node.attr


@pytest.mark.parametrize("text", list(blocks("python")))
def test_shown_python_parses_and_uses_names_that_exist(text: str) -> None:
    assert ast.parse(text).body
    for module, name in imports(text):
        assert hasattr(import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [
        link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()
    ] == []


def first_cells(page: str, heading: str) -> set[str]:
    """The names in backticks in the first column of the table below a heading."""
    section = (ROOT / page).read_text().split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_column_of_the_dataset_is_described() -> None:
    schemas = [
        IMAGE_ROW_SCHEMA,
        ORIGIN_SCHEMA,
        OUTCOME_SCHEMA,
        LOCATION_SCHEMA,
        NEAR_DUPLICATE_SCHEMA,
    ]
    columns = {name for schema in schemas for name in schema.names}
    assert first_cells("docs/dataset.md", "## Columns") == columns


def test_every_check_of_the_doctor_is_described() -> None:
    modules = (ROOT / "workflows/doctor").glob("check_*.py")
    names = [
        re.findall(r'^@doctor_check\("(.+)"\)', text.read_text(), re.MULTILINE) for text in modules
    ]
    checks = {name for module in names for name in module}
    assert first_cells("docs/cluster.md", "## Check the cluster") == checks


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_no_page_has_the_marks_of_a_merge(page: Path) -> None:
    assert not re.findall(r"^(?:<{7}|={7}|>{7})(?: |$)", page.read_text(), re.MULTILINE)
