"""The account of a run: every entry counts once, whoever writes it, and reading is cheap."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.runs.account import NOTHING, Account, Spent
from imagekiln.steps.runs.keys import account_key
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore


class CountingStore(LocalStore):
    """Counts requests."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.requests: Counter[str] = Counter()

    def exists(self, key: str) -> bool:
        self.requests["exists"] += 1
        return super().exists(key)

    def read(self, key: str) -> bytes:
        self.requests["read"] += 1
        return super().read(key)


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


def test_no_entry_is_lost_where_many_write_at_once(tmp_path: Path) -> None:
    def spend(_: int) -> None:
        account = Account(open_store(str(tmp_path)))
        for _ in range(5):
            account.add(Spent(seconds=1))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(spend, range(6)))
    assert Account(open_store(str(tmp_path))).read().seconds == 30


def test_sum_that_could_not_be_read_at_first_is_in_the_next_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Account(open_store(str(tmp_path))).add(Spent(seconds=100))
    account = Account(open_store(str(tmp_path)))
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "read", _fail)
        with pytest.raises(TryAgain):
            account.add(Spent(seconds=1))
    assert account.add(Spent(seconds=2)).seconds == 102


def _fail(*_: object) -> bytes:
    raise TryAgain("the storage is away for a while")


@pytest.mark.parametrize("entries", [1, 2, 3, 200])
def test_reading_takes_few_requests_however_many_entries_there_are(
    tmp_path: Path, entries: int
) -> None:
    writer = Account(open_store(str(tmp_path)))
    for _ in range(entries):
        writer.add(Spent(seconds=1))
    store = CountingStore(tmp_path)
    assert Account(store).read().seconds == entries
    assert store.requests.total() <= 2 * entries.bit_length() + 2


@pytest.mark.parametrize(
    "spent",
    [
        None,
        '"seconds": NaN',
        '"seconds": 1e999',
        '"seconds": -1000',
        '"attempts": -1',
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
