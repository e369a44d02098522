"""Mutated files of every kind. With other seeds: `python -m tests.fuzz --seed 8 --count 10000`."""

import pytest

from tests.fuzz import hunt
from tests.mutations import MAKERS

COUNT = 1500


@pytest.mark.parametrize("kind", MAKERS)
def test_mutated_files_end_in_what_they_say_or_in_a_sentence(kind: str) -> None:
    found = hunt(kind, seed=7, count=COUNT)
    assert found.defects == []
    assert found.outcomes.total() == COUNT
    assert found.outcomes["accepted"] > COUNT // 100  # mutations that still leave something to read
