"""Run folders that a stranger changed: each command ends with a result or a sentence."""

import pytest

from tests.hostile import try_changes


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_one_changed_object_leads_to_a_result_or_a_sentence(first: int) -> None:
    assert try_changes(range(first, first + 10)) == []
