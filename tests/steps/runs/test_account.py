"""The account of a run: every entry counts once, whoever writes it, and reading is cheap."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.account import NOTHING, Account, Spent
from imagekiln.steps.runs.keys import account_key
from imagekiln.steps.storage import open_store


def test_a_run_that_nobody_began_has_spent_nothing(tmp_path: Path) -> None:
    assert Account(open_store(str(tmp_path))).read() == NOTHING


def test_entries_of_several_processes_add_up(tmp_path: Path) -> None:
    first = Account(open_store(str(tmp_path)))
    second = Account(open_store(str(tmp_path)))
    first.add(Spent(seconds=10, useful=8, attempts=1))
    second.add(Spent(seconds=5, useful=5, attempts=1, ended=1))
    total = first.add(Spent(seconds=2, useful=4, ended=1))
    assert total == Spent(seconds=17, useful=17, attempts=2, ended=2)
    assert Account(open_store(str(tmp_path))).read() == total


@pytest.mark.parametrize(
    "spent",
    [
        None,
        '"seconds": 1e999',
        f'"attempts": 1{"0" * 400}',
    ],
)
def test_a_damaged_entry_is_named(tmp_path: Path, spent: str | None) -> None:
    entry = "{}"
    if spent is not None:  # which would exhaust any budget, or none
        entry = f'{{"writer": "a", "at": 0, "spent": {{{spent}}}}}'
    store = open_store(str(tmp_path))
    store.create(account_key(0), entry.encode())
    with pytest.raises(BadInput, match=r"account/000000\.json: is damaged"):
        Account(store).read()


def test_the_cost_is_known_where_all_time_has_a_price() -> None:
    assert Spent(seconds=3600, cost=2.0, priced=3600).complete_cost == 2.0
    half_priced = Spent(seconds=3600, cost=1.0, priced=1800)
    assert half_priced.complete_cost is None
    assert half_priced.highest_cost(4.0) == 3.0
