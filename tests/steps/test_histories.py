"""A search for histories of processes that break a promise."""

import pytest

from tests.histories import check_histories


@pytest.mark.parametrize("seed", range(8))  # for several workers
def test_no_history_of_processes_breaks_a_promise(seed: int) -> None:
    check_histories(examples=5, seed=seed)
