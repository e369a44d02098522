"""Runs over an unreliable network."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.storage import open_store
from tests.kills import finish_run, make_undisturbed, plan_run
from tests.network import dead_port, flaky
from tests.processes import Child, command
from tests.s3 import S3Server, log_in
from tests.texts import chance

IMAGES = 80
TRIES = 30


def test_run_over_a_network_that_loses_answers_ends_as_the_same_dataset(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = make_undisturbed(plan_run(tmp_path, str(tmp_path / "undisturbed"), IMAGES))
    dice = chance(7)
    with flaky(s3_server.endpoint, lambda _: dice.random() < 0.2) as network:
        log_in(S3Server(network.endpoint), monkeypatch)
        run = plan_with_retries(tmp_path, s3_bucket)
        for _ in range(TRIES):
            exit_code = Child(command, "generate", run.uri, "--shard", "0").join()
            if exit_code == 0:
                break
            assert exit_code == TryAgain.exit_code
        for _ in range(TRIES):
            if Child(command, "aggregate", run.uri).join() == 0:
                break
    assert network.lost > 20
    log_in(s3_server, monkeypatch)
    dataset = finish_run(run)
    assert dataset.parts == undisturbed.parts
    assert dataset.manifest.equals(undisturbed.manifest, check_metadata=True)
    assert dataset.verified.ok == IMAGES


def plan_with_retries(scratch: Path, output: str) -> PlanResult:
    """Plan until it succeeds."""
    for _ in range(TRIES):
        try:
            return plan_run(scratch, output, IMAGES)
        except TryAgain:
            continue
    raise AssertionError(f"no plan after {TRIES} tries")


@pytest.mark.parametrize("kind", ["refuses", "swallows", "silent"])
def test_endpoint_that_does_not_answer_is_given_up_within_a_minute(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with ExitStack() as resources:
        log_in(S3Server(f"http://127.0.0.1:{dead_port(kind, resources)}"), monkeypatch)
        store = open_store("s3://bucket/run")
        started = time.monotonic()
        with pytest.raises(TryAgain):
            store.exists("part")
        between = time.monotonic()
        with pytest.raises(TryAgain):
            store.create("part", b"x")
        ended = time.monotonic()
        assert max(between - started, ended - between) < 65
