from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.existing_images import (
    choose_existing_runs,
    freeze_existing_runs,
    successful_runs,
)
from imagekiln.steps.runs.keys import EXISTING_RUNS_KEY
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import jobs
from tests.registry import entry, succeed
from tests.s3 import S3Server, log_in
from tests.stub_s3 import stub_s3


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job that is to skip what two runs made."""
    there = jobs.job(tmp_path, skip_existing=True)
    succeed(there.output, entry(0), entry(1))
    return there


@pytest.fixture
def store(job: Job) -> Store:
    """The folder of the next run."""
    return open_store(f"{job.output}/nightly-2")


def test_earlier_runs_are_chosen_but_not_the_run_itself(job: Job, store: Store) -> None:
    assert successful_runs(job) == ("nightly-0", "nightly-1")
    assert choose_existing_runs(store, job, "nightly-2") == ("nightly-0", "nightly-1")
    assert choose_existing_runs(store, job, "nightly-1") == ("nightly-0",)


def test_choice_that_was_frozen_stays(job: Job, store: Store) -> None:
    freeze_existing_runs(store, job, ("nightly-0",))
    succeed(job.output, entry(3))
    assert choose_existing_runs(store, job, "nightly-2") == ("nightly-0",)
    freeze_existing_runs(store, job, ("nightly-0",))


def test_two_that_plan_at_once_and_choose_otherwise_do_not_mix(job: Job, store: Store) -> None:
    freeze_existing_runs(store, job, ("nightly-0",))
    with pytest.raises(TryAgain, match="is being planned by someone else too"):
        freeze_existing_runs(store, job, ("nightly-0", "nightly-1"))


def test_job_that_skips_nothing_asks_for_no_runs(job: Job, store: Store) -> None:
    plain = job.model_copy(update={"skip_existing": False, "output": "s3://nowhere/at-all"})
    assert successful_runs(plain) == choose_existing_runs(store, plain, "nightly-2") == ()
    freeze_existing_runs(store, plain, ())
    assert not store.exists(EXISTING_RUNS_KEY)


@pytest.mark.parametrize("content", [b"{}\n", b'["../elsewhere"]', b"[", b"[1]"])
def test_damaged_choice_is_refused(job: Job, store: Store, content: bytes) -> None:
    store.replace(EXISTING_RUNS_KEY, content)
    with pytest.raises(BadInput, match=r"looked-at\.json: is damaged"):
        choose_existing_runs(store, job, "nightly-2")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A folder in a store that ignores If-None-Match."""
    with stub_s3(conditional=False) as stub:
        log_in(S3Server(stub.endpoint), monkeypatch)
        yield open_store("s3://bucket/run")


def test_store_that_ignores_conditions_is_refused_before_anything_follows(
    job: Job, forgetful: Store
) -> None:
    with pytest.raises(BadInput, match="ignores conditional writes"):
        freeze_existing_runs(forgetful, job, ())
    assert not forgetful.exists(EXISTING_RUNS_KEY)
    freeze_existing_runs(forgetful, job.model_copy(update={"unconditional_writes": "accept"}), ())
    assert forgetful.exists(EXISTING_RUNS_KEY)
