"""The registry of successful runs: complete, in order, without a listing."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.keys import SUCCESS_KEY, registry_key
from imagekiln.steps.runs.registry import (
    RunEntry,
    append_run_entry,
    find_finished_runs,
)
from imagekiln.steps.storage import open_store
from tests.registry import entry, succeed
from tests.s3 import S3_AMONG_SLOW


def test_run_is_registered_once_however_often_it_is_aggregated(store_uri: str) -> None:
    succeed(store_uri, entry(0), entry(1), entry(0), entry(1))
    assert find_finished_runs(store_uri) == [entry(0), entry(1)]
    assert not open_store(store_uri).exists(registry_key(2))


@S3_AMONG_SLOW
def test_run_whose_success_is_gone_does_not_count(store_uri: str) -> None:
    succeed(store_uri, entry(0), entry(1))
    open_store(store_uri).remove(f"{entry(0).run_id}/{SUCCESS_KEY}")
    assert find_finished_runs(store_uri) == [entry(1)]


@pytest.mark.quick_cases(1)
def test_runs_that_end_at_once_are_all_registered(store_uri: str) -> None:
    nights = [entry(number) for number in range(6)]
    together = Barrier(2 * len(nights))

    def end(night: RunEntry) -> None:
        together.wait(timeout=30)
        append_run_entry(store_uri, night)

    with ThreadPoolExecutor(2 * len(nights)) as pool:
        list(pool.map(end, nights * 2))  # each by two pods, as after a retry
    succeed(store_uri, *nights)
    assert sorted(find_finished_runs(store_uri), key=lambda run: run.run_id) == nights
    assert not open_store(store_uri).exists(registry_key(len(nights)))


@pytest.mark.parametrize(
    "content", [b"", b'{"run_id": "../elsewhere", "name": "x"}', b'{"run_id": "a\\nb"}']
)
@S3_AMONG_SLOW
def test_entry_that_names_no_run_is_refused(store_uri: str, content: bytes) -> None:
    open_store(store_uri).replace(registry_key(0), content or b"\n")
    refusal = r"_runs/000000\.json: is not a readable entry of a run"
    with pytest.raises(BadInput, match=refusal):
        find_finished_runs(store_uri)
    with pytest.raises(BadInput, match=refusal):
        append_run_entry(store_uri, entry(0))
