"""A run on S3 whose steps meet faults, kills and stops at any request. Minutes: each is replayed.

`SCENARIOS` is how many are played, and `SCENARIO_SEED` the first seed: with the count 1 and the
seed of a failure, it is played again.
"""

import os
import signal
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tests.disturbance import SERVER_FAULTS, disturbance
from tests.s3 import S3Server, hurry, log_in
from tests.scenarios import Bench, Damage, Life

COUNT = int(os.environ.get("SCENARIOS", "300"))
SEED = int(os.environ.get("SCENARIO_SEED", "0"))
# A request to stop may come while Python finalizes an object, and is then only written about.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def bench(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A life that was lived once. Requests are repeated as often as always, but at once."""
    hurry(monkeypatch)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one may come after its step has ended
    life = Life(tmp_path, s3_server.make_bucket(), s3_server)
    with disturbance(s3_server.endpoint) as network:
        log_in(S3Server(network.endpoint), monkeypatch)
        life.record(network)
        yield Bench(life, network)
    signal.signal(signal.SIGTERM, before)


def damages(plays: Iterator[Callable[[], None]]) -> list[str]:
    """What is wrong after some of the scenarios."""
    found = []
    for play in plays:
        try:
            play()
        except Damage as damage:
            found.append(str(damage))
    return found


def test_whatever_goes_wrong_the_step_run_again_ends_as_undisturbed(bench: Bench) -> None:
    seeds = range(SEED, SEED + COUNT)
    found = damages(lambda seed=seed: bench.play(seed) for seed in seeds)  # type: ignore[misc]
    assert not found, "\n".join(found)


def test_each_request_of_each_step_may_meet_a_fault(bench: Bench) -> None:
    life = bench.life
    places = [(step, name) for step in life.steps for name in sorted({*life.requests[step]})]
    meetings = zip(cycle(SERVER_FAULTS), places, strict=False)
    found = damages(
        lambda fault=fault, step=step, name=name: bench.play_fault(step, name, fault)  # type: ignore[misc]
        for fault, (step, name) in meetings
    )
    assert not found, "\n".join(found)
