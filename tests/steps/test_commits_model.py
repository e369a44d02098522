"""The rules of the commit protocol suffice, and each is needed: in a model, without our code."""

import pytest

from tests.commits_histories import RULES, violation


@pytest.mark.parametrize("seed", range(4))  # for several workers
def test_no_history_breaks_a_promise(seed: int) -> None:
    found = [violation(f"{seed}-{number}") for number in range(50)]
    assert not any(found), next(filter(None, found))


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_keeps_a_history_from_breaking_a_promise(rule: str) -> None:
    history = f"1-{RULES[rule]}"
    assert violation(history, without=rule)
    assert not violation(history), violation(history)
