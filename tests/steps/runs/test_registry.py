"""The registry of successful runs: complete, in order, without a listing."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.runs.finished_runs import find_finished_runs
from imagekiln.steps.runs.keys import SUCCESS_KEY, registry_block_key, registry_key
from imagekiln.steps.runs.registry import (
    BLOCK_ENTRIES,
    READERS,
    RunEntry,
    append_run_entry,
    read_entries,
)
from imagekiln.steps.storage import open_store
from tests.registry import entry, succeed
from tests.s3 import S3_AMONG_SLOW, S3Server, log_in
from tests.stub_s3 import Fault, stub_s3


def test_output_without_runs_has_none(store_uri: str) -> None:
    assert find_finished_runs(store_uri) == []


def test_runs_come_in_the_order_in_which_they_ended(store_uri: str) -> None:
    nights = [entry(number) for number in (2, 0, 1)]
    succeed(store_uri, *nights)
    assert find_finished_runs(store_uri) == nights


def test_run_is_registered_once_however_often_it_is_aggregated(store_uri: str) -> None:
    succeed(store_uri, entry(0), entry(1), entry(0), entry(1))
    assert find_finished_runs(store_uri) == [entry(0), entry(1)]
    assert not open_store(store_uri).exists(registry_key(2))


@S3_AMONG_SLOW
def test_run_whose_success_is_gone_does_not_count(store_uri: str) -> None:
    succeed(store_uri, entry(0), entry(1))
    open_store(store_uri).remove(f"{entry(0).run_id}/{SUCCESS_KEY}")
    assert find_finished_runs(store_uri) == [entry(1)]


def test_entries_are_never_changed(store_uri: str) -> None:
    succeed(store_uri, entry(0))
    first = open_store(store_uri).read(registry_key(0))
    succeed(store_uri, entry(1), entry(0))
    assert open_store(store_uri).read(registry_key(0)) == first


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


def test_registering_whose_answer_was_lost_is_no_second_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stub_s3() as store:
        log_in(S3Server(store.endpoint), monkeypatch)
        reads: list[Fault] = ["none"] * READERS
        store.faults.extend([*reads, "lost"])
        append_run_entry("s3://bucket/out", entry(0))
    assert [name for name in store.objects if "_runs" in name] == ["/bucket/out/_runs/000000.json"]


@pytest.mark.parametrize(
    "content", [b"", b'{"run_id": "../elsewhere", "name": "x"}', b'{"run_id": "a\\nb"}']
)
@S3_AMONG_SLOW
def test_entry_that_names_no_run_is_refused(store_uri: str, content: bytes) -> None:
    open_store(store_uri).replace(registry_key(0), content or b"\n")
    refusal = r"_runs/000000\.json: is not the entry of a run"
    with pytest.raises(BadInput, match=refusal):
        find_finished_runs(store_uri)
    with pytest.raises(BadInput, match=refusal):
        append_run_entry(store_uri, entry(0))


def test_store_that_fails_is_not_taken_for_the_end_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stub_s3() as store:
        log_in(S3Server(store.endpoint), monkeypatch)
        store.faults.extend([(400, "ExpiredToken")] * READERS)
        with pytest.raises(TryAgain):
            find_finished_runs("s3://bucket/out")


def test_block_that_a_killed_process_did_not_write_is_written_by_the_next(tmp_path: Path) -> None:
    output = str(tmp_path)
    store = open_store(output)
    nights = [entry(number) for number in range(BLOCK_ENTRIES)]
    for number, night in enumerate(nights):
        store.create(registry_key(number), b'{"run_id": "%s", "name": "nightly"}' % _id(night))
    assert read_entries(output) == nights
    assert not store.exists(registry_block_key(0))
    append_run_entry(output, nights[0])
    assert store.exists(registry_block_key(0))
    store.remove(registry_key(0))
    assert read_entries(output) == nights


def _id(run: RunEntry) -> bytes:
    return run.run_id.encode()
