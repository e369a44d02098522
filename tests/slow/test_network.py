"""Runs over a network that does not do what it should."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.storage import open_store
from tests.kills import finished, planned, undisturbed
from tests.network import dead_port, flaky
from tests.processes import Child, command
from tests.s3 import S3Server, log_in
from tests.texts import chance

IMAGES = 80
TRIES = 30


def test_run_over_a_network_that_loses_answers_ends_as_the_same_dataset(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = undisturbed(planned(tmp_path, str(tmp_path / "undisturbed"), IMAGES))
    dice = chance(7)
    with flaky(s3_server.endpoint, lambda _: dice.random() < 0.2) as network:
        log_in(S3Server(network.endpoint), monkeypatch)
        there = persistently_planned(tmp_path, s3_bucket)
        for _ in range(TRIES):
            if (ended := Child(command, "generate", there.uri, "--shard", "0").join()) == 0:
                break
            assert ended == TryAgain.exit_code
        for _ in range(TRIES):
            if Child(command, "aggregate", there.uri).join() == 0:
                break
    assert network.lost > 20
    log_in(s3_server, monkeypatch)
    found = finished(there)
    assert found.parts == wanted.parts
    assert found.manifest.equals(wanted.manifest, check_metadata=True)
    assert found.verified.ok == IMAGES


def persistently_planned(scratch: Path, output: str) -> PlanResult:
    """Plan, again and again."""
    for _ in range(TRIES):
        try:
            return planned(scratch, output, IMAGES)
        except TryAgain:
            continue
    raise AssertionError(f"no plan after {TRIES} tries")


@pytest.mark.parametrize("kind", ["refuses", "swallows", "silent"])
def test_endpoint_that_does_not_answer_is_given_up_within_a_minute(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with ExitStack() as held:
        log_in(S3Server(f"http://127.0.0.1:{dead_port(kind, held)}"), monkeypatch)
        store = open_store("s3://bucket/run")
        started = time.monotonic()
        with pytest.raises(TryAgain):
            store.exists("part")
        asked = time.monotonic()
        with pytest.raises(TryAgain):
            store.create("part", b"x")
        assert max(asked - started, time.monotonic() - asked) < 65
