"""What the README and the docs show is what the program takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from imagekiln.steps.job.reader import validate_job
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
    """Every `imagekiln ...` in the pages' shell blocks, as words."""
    joined = (text.replace("\\\n", "") for text in blocks("sh"))
    lines = (shlex.split(line, comments=True) for text in joined for line in text.splitlines())
    return [words[1:] for words in lines if words[:1] == ["imagekiln"]]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_shown_command_is_one(words: list[str]) -> None:
    command = main.commands[words[0]]
    context = command.make_context(
        words[0], [word for word in words[1:] if word != ">"], resilient_parsing=True
    )
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert isinstance(context, click.Context)


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
    else:
        (tmp_path / "own.yaml").write_text(text)
        assert load_profile(str(tmp_path / "own.yaml")).name == "own"


def test_shown_python_parses() -> None:
    assert all(ast.parse(text).body for text in blocks("python"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [
        link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()
    ] == []
