"""A long search for a history of a run's processes that breaks a promise: 20 minutes.

For more: `python -m tests.histories --examples 10000 --seed 1`.
"""

import pytest

from tests.histories import check_histories


@pytest.mark.parametrize("seed", range(4))
def test_no_history_of_processes_breaks_a_promise(seed: int) -> None:
    check_histories(examples=250, seed=seed)
