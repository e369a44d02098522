"""The registry of successful runs: complete, in order, without a listing."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from imagekiln.steps.storage.local import LocalStore
from tests.interleaving import frozen, interleaving
from tests.registry import entry, succeed
from tests.s3 import S3_AMONG_SLOW, S3Server, log_in
from tests.stub_s3 import Fault, stub_s3


def test_output_without_runs_has_none(store_uri: str) -> None:
    assert find_finished_runs(store_uri) == []


def test_runs_come_in_the_order_in_which_they_ended(store_uri: str) -> None:
    nights = [entry(number) for number in (2, 0, 1)]
    succeed(store_uri, *nights)
    assert find_finished_runs(store_uri) == nights


def test_as_many_runs_as_are_read_ahead_are_all_found(tmp_path: object) -> None:
    for count in (READERS, 2 * READERS + 1):
        succeed(f"{tmp_path}/{count}", *map(entry, range(count)))
        assert find_finished_runs(f"{tmp_path}/{count}") == [
            entry(number) for number in range(count)
        ]


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


def test_run_that_is_registered_just_before_another_keeps_its_entry(tmp_path: Path) -> None:
    register = partial(append_run_entry, str(tmp_path))
    with interleaving(tmp_path, lambda *_: None):
        late = frozen(partial(register, entry(0)), "create", registry_key(0))
        register(entry(1))
        late.finish()
    assert late.error is None
    assert read_entries(str(tmp_path)) == [entry(1), entry(0)]


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
    "content", [b"", b"{", b'{"run_id": "../elsewhere", "name": "x"}', b'{"run_id": "a\\nb"}']
)
@S3_AMONG_SLOW
def test_entry_that_names_no_run_is_refused(store_uri: str, content: bytes) -> None:
    open_store(store_uri).replace(registry_key(0), content or b"\n")
    refusal = r"_runs/000000\.json: is not the entry of a run"
    with pytest.raises(BadInput, match=refusal):
        find_finished_runs(store_uri)
    with pytest.raises(BadInput, match=refusal):
        append_run_entry(store_uri, entry(0))


@S3_AMONG_SLOW
def test_entry_of_a_later_imagekiln_is_read(store_uri: str) -> None:
    values = b'{"run_id": "nightly-0", "name": "nightly", "new": 1}'
    open_store(store_uri).replace(registry_key(0), values)
    succeed(store_uri, entry(0))
    assert find_finished_runs(store_uri) == [entry(0)]


def test_store_that_fails_is_not_taken_for_the_end_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stub_s3() as store:
        log_in(S3Server(store.endpoint), monkeypatch)
        store.faults.extend([(400, "ExpiredToken")] * READERS)
        with pytest.raises(TryAgain):
            find_finished_runs("s3://bucket/out")


def test_many_entries_are_read_in_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = str(tmp_path)
    store = open_store(output)
    nights = [entry(number) for number in range(3 * BLOCK_ENTRIES)]
    for number, night in enumerate(nights[:-1]):
        store.create(registry_key(number), b'{"run_id": "%s", "name": "nightly"}' % _id(night))
    append_run_entry(output, nights[-1])
    reads: list[str] = []
    original = LocalStore.read

    def read(store: LocalStore, key: str) -> bytes:
        reads.append(key)
        return original(store, key)

    monkeypatch.setattr(LocalStore, "read", read)
    assert read_entries(output) == nights
    assert len(reads) <= 3 + 1 + READERS
    later = entry(3 * BLOCK_ENTRIES)
    append_run_entry(output, later)
    assert read_entries(output) == [*nights, later]


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


@pytest.mark.parametrize("content", [b"[]\n", b"{", b'[{"run_id": "../elsewhere", "name": "x"}]'])
def test_block_that_is_damaged_is_refused(tmp_path: Path, content: bytes) -> None:
    open_store(str(tmp_path)).replace(registry_block_key(0), content)
    with pytest.raises(BadInput, match=r"_runs/block-0000\.json: is damaged\. Delete it"):
        find_finished_runs(str(tmp_path))


def _id(run: RunEntry) -> bytes:
    return run.run_id.encode()


def test_entry_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry(0).name = "other"  # type: ignore[misc]  # what the test is about
