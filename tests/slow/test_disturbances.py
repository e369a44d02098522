"""Thousands of things that can go wrong in the life of a run on S3, each by its seed or place.

`DISTURBANCES` is how many scenarios are played in each format, and `DISTURBANCE_SEED` the first
seed: with the count 1 and the seed of a failure, it is played again.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import pytest

from imagekiln.steps.storage import s3_reader
from tests.dataset_hub import TOKEN, DatasetHub, dataset_hub
from tests.disturbance import ALL_FAULTS, disturbance
from tests.life import Life
from tests.published_life import PublishedLife, load_safely
from tests.s3 import S3Server, hurry, log_in
from tests.scenarios import Bench, Damage

COUNT = int(os.environ.get("DISTURBANCES", "300"))
SEED = int(os.environ.get("DISTURBANCE_SEED", "0"))
SLICES = 10  # of the requests, each of which is a test
# A request to stop may come while Python finalizes an object, and is then only written about.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Requests are repeated as often as always, but at once; small objects are read in ranges."""
    hurry(monkeypatch)
    monkeypatch.setattr(s3_reader, "TAIL_BYTES", 1000)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one may come after its step has ended
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[DatasetHub]:
    """A hub that exports are pushed to, some files a commit; some prompts a list and a part."""
    with dataset_hub() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("imagekiln.steps.export.push.COMMIT_FILES", 2)
        monkeypatch.setattr("imagekiln.steps.rewrite.step.PART_PROMPTS", 1)
        monkeypatch.setattr("imagekiln.steps.runs.rewriting.LIST_PROMPTS", 2)
        loading = "imagekiln.steps.rewrite.language_model.load_language_model"
        monkeypatch.setattr(loading, load_safely)
        yield server


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("format_name", ["parquet", "webdataset", "files"])
def test_whatever_goes_wrong_the_step_run_again_ends_as_undisturbed(
    format_name: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(s3_server, monkeypatch)
    life = Life(tmp_path, s3_server.make_bucket(), s3_server, format_name)
    assert not damages_in(life, monkeypatch)


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # as in test_push
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("format_name", ["parquet", "webdataset", "files"])
def test_whatever_goes_wrong_a_dataset_is_published_as_undisturbed(
    format_name: str,
    s3_server: S3Server,
    hub: DatasetHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log_in(s3_server, monkeypatch)
    bucket = s3_server.make_bucket()
    life = PublishedLife(tmp_path, bucket, s3_server, format_name, hub=hub)
    assert not damages_in(life, monkeypatch)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("slice_start", range(SLICES))
@pytest.mark.parametrize("format_name", ["parquet", "webdataset", "files"])
def test_each_request_of_each_step_may_meet_a_fault(
    format_name: str,
    slice_start: int,
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each meets one fault, and another with each further first seed."""
    log_in(s3_server, monkeypatch)
    life = Life(tmp_path, s3_server.make_bucket(), s3_server, format_name)
    damages = []
    with recorded(life, monkeypatch) as bench:
        places = [(step, name) for step in life.steps for name in sorted({*life.requests[step]})]
        faults = islice(cycle(ALL_FAULTS), SEED % len(ALL_FAULTS), None)
        meetings = zip(faults, places, strict=False)
        for fault, (step, request) in islice(meetings, slice_start, None, SLICES):
            try:
                bench.play_fault(step, request, fault)
            except Damage as damage:
                damages.append(str(damage))
    assert not damages


def damages_in(life: Life, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong after some of the scenarios."""
    damages = []
    with recorded(life, monkeypatch) as bench:
        for seed in range(SEED, SEED + COUNT):
            try:
                bench.play(seed)
            except Damage as damage:
                damages.append(str(damage))
    return damages


@contextmanager
def recorded(life: Life, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench for a life that was lived once, undisturbed."""
    with (
        disturbance(life.server.endpoint) as network,
        disturbance(life.server.endpoint) as other_network,
    ):
        log_in(S3Server(network.endpoint), monkeypatch)
        life.record(network)
        yield Bench(life, network, other_network)
