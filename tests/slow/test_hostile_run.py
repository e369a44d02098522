"""Run folders that a stranger changed, in many ways: see `python -m tests.hostile --help`."""

import pytest

from tests.hostile import try_changes


@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_each_of_two_thousand_changes_leads_to_a_result_or_a_sentence(first: int) -> None:
    assert try_changes(range(first, first + 100)) == []
