"""A long search for a history that breaks a promise, in the model of the commit protocol.

For more: `python -m tests.commits_histories explore 30000 7`.
"""

import pytest

from tests.commits_histories import violation


@pytest.mark.parametrize("seed", range(10, 14))
def test_no_history_breaks_a_promise(seed: int) -> None:
    found = filter(None, (violation(f"{seed}-{number}") for number in range(2500)))
    assert next(found, None) is None
