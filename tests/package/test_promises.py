"""Each promise of the README and the docs names the tests that hold it, and each test exists."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.runs.keys import manifest_key, part_key
from imagekiln.steps.runs.tables import read_table
from tests.runs import finished

ROOT = Path(__file__).parents[2]
PROMISES = yaml.safe_load((ROOT / "docs/promises.yaml").read_text(encoding="utf-8"))
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "LOG.md"),
]
# Words that promise. Not `resume`, which is a command.
PROMISING = re.compile(
    r"\b(never|always|resumes|(?:exactly|at most|only) once|nothing twice|lost or made twice|"
    r"(?:same|equal) bytes|byte for byte)\b",
    re.IGNORECASE,
)
# The page whose tables name the tests themselves.
TABLES = ROOT / "docs/security.md"
TEST_NAME = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")


def _text(page: Path) -> str:
    """The text of a page, without how its lines are broken."""
    return " ".join(page.read_text(encoding="utf-8").split())


@cache
def _tests_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def _is_promised(text: str, word: re.Match[str], sayings: list[str]) -> bool:
    """Whether the word stands in one of the sayings, wherever that stands in the text."""
    return any(
        place.start() <= word.start() and word.end() <= place.end()
        for saying in sayings
        for place in re.finditer(re.escape(saying), text)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_promise_of_a_page_is_listed_with_its_tests(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    sayings = [promise["says"] for promise in PROMISES if promise["page"] == name]
    text = _text(page)
    if page == TABLES:
        text = re.sub(r"## What is promised.*?(?=## What is not)", "", text)
    missing = [
        text[max(0, word.start() - 60) : word.end() + 40]
        for word in PROMISING.finditer(text)
        if not _is_promised(text, word, sayings)
    ]
    assert missing == [], "list each in docs/promises.yaml, with the tests that hold it"


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise["says"][:40])
def test_each_listed_promise_is_on_its_page_and_has_tests_or_a_reason(
    promise: dict[str, Any],
) -> None:
    assert promise["says"] in _text(ROOT / promise["page"])
    assert ("tests" in promise) != ("reason" in promise)
    for name in promise.get("tests", ()):
        file, _, test = name.partition("::")
        assert test in _tests_of(file), name


def test_each_promise_of_the_security_page_names_tests_that_exist() -> None:
    text = TABLES.read_text(encoding="utf-8")
    promised = text.partition("## What is promised")[2].partition("## What is not promised")[0]
    rows = [line for line in promised.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| promise ")]
    assert len(rows) > 15
    for row in rows:
        names = TEST_NAME.findall(row)
        assert names or "read only: " in row, row
        for file, test in names:
            assert test in _tests_of(file), f"{file}::{test}"


def test_columns_that_are_never_null_never_are(tmp_path: Path) -> None:
    page = (ROOT / "docs/dataset.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?`) \|.*\| never \|$", page, re.MULTILINE)
    columns = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"image_id", "prompt", "width", "status"} < columns
    store = finished(tmp_path / "run")
    store.remove(part_key(0, 0))
    with pytest.raises(Incomplete):
        aggregate(store.uri)
    table = read_table(store, manifest_key(0))
    assert set(table["status"].to_pylist()) == {"missing", "ok"}
    assert {name for name in columns if table[name].null_count} == set()
