"""Each promise of docs/guarantees.md is on its page, and the tests that hold it exist."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROMISES: list[dict[str, Any]] = yaml.safe_load(
    (ROOT / "docs/promises.yaml").read_text(encoding="utf-8")
)


@cache
def _tests_of(file: str) -> frozenset[str]:
    """The names of the test functions in a file; none if it does not exist."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("page", sorted({promise["page"] for promise in PROMISES}))
def test_promises_are_on_their_page_and_have_tests(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    promises = [promise for promise in PROMISES if promise["page"] == page]

    assert [promise["says"] for promise in promises if promise["says"] not in text] == []
    assert [promise["says"] for promise in promises if not promise["tests"]] == []
    tests = [test.split("::") for promise in promises for test in promise["tests"]]
    assert ["::".join(test) for test in tests if test[1] not in _tests_of(test[0])] == []
