"""Thousands of things that can go wrong in the life of a run on S3, each by its seed.

`DISTURBANCES` is how many scenarios are played in each format, and `DISTURBANCE_SEED` the first
seed: with the count 1 and the seed of a failure, it is played again.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.retries.standard import ExponentialBackoff

from imagekiln.steps.storage import object_store, s3_reader
from tests.disturbance import disturbance
from tests.life import Life
from tests.s3 import S3Server, log_in
from tests.scenarios import Bench, Damage

COUNT = int(os.environ.get("DISTURBANCES", "300"))
SEED = int(os.environ.get("DISTURBANCE_SEED", "0"))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Requests are repeated as often as always, but at once; small objects are read in ranges."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.0)
    monkeypatch.setattr(object_store, "CONFLICT_SECONDS", 0.0)
    monkeypatch.setattr(s3_reader, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(s3_reader, "TAIL_BYTES", 1000)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one may come after its step has ended
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("format_name", ["parquet", "webdataset", "files"])
def test_whatever_goes_wrong_the_step_run_again_ends_as_undisturbed(
    format_name: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(s3_server, monkeypatch)
    life = Life(tmp_path, s3_server.make_bucket(), s3_server, format_name)
    with (
        disturbance(s3_server.endpoint) as network,
        disturbance(s3_server.endpoint) as other_network,
    ):
        log_in(S3Server(network.endpoint), monkeypatch)
        life.record(network)
        bench = Bench(life, network, other_network)
        damages = []
        for seed in range(SEED, SEED + COUNT):
            try:
                bench.play(seed)
            except Damage as damage:
                damages.append(str(damage))
        assert not damages
