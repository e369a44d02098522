"""The short form of tests/slow/test_kill.py: killed processes lose and spoil nothing."""

import os
import signal
from pathlib import Path

import pytest

from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runs.shard import count_images, missing_parts, read_shard
from imagekiln.steps.runtime.signals import GRACE_SECONDS
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from tests.kills import Dataset, finish_run, make_undisturbed, make_with_kills, plan_run
from tests.models import scratch
from tests.processes import Begun, Child, command
from tests.runs import stats_of
from tests.s3 import S3_AMONG_SLOW

IMAGES = 60
KILLS = 2


@pytest.fixture(scope="module")
def undisturbed() -> Dataset:
    """The dataset of a run that nobody disturbs."""
    folder = scratch("undisturbed")
    return make_undisturbed(plan_run(folder, str(folder / "out"), IMAGES))


def assert_same(dataset: Dataset, undisturbed: Dataset) -> None:
    """Compare all that a finished run promises."""
    assert dataset.parts == undisturbed.parts
    assert dataset.manifest.equals(undisturbed.manifest, check_metadata=True)
    assert dataset.verified.ok == undisturbed.verified.ok == IMAGES


@pytest.mark.parametrize("store_uri", ["s3"], indirect=True)
def test_killed_run_ends_as_the_dataset_of_an_undisturbed_one(
    store_uri: str, tmp_path: Path, undisturbed: Dataset
) -> None:
    run = plan_run(tmp_path, store_uri, IMAGES)
    assert make_with_kills(run, KILLS, seed=7).between >= KILLS
    assert_same(finish_run(run), undisturbed)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_writer_killed_around_its_commit_leaves_a_whole_object_or_none(
    tmp_path: Path, moment: str
) -> None:
    assert Child(die_linking, str(tmp_path), moment).join() == -signal.SIGKILL
    store = LocalStore(tmp_path)
    assert store.exists("part") == (moment == "after")
    assert store.create("part", b"whole") == (moment == "before")
    assert store.read("part") == b"whole"


def die_linking(_begun: Begun, folder: str, moment: str) -> None:
    """Write an object, and be killed just before or after it gets its name."""
    link = os.link

    def deadly(source: Path, target: Path) -> None:
        if moment == "after":
            link(source, target)
        os.kill(os.getpid(), signal.SIGKILL)

    os.link = deadly  # type: ignore[assignment]  # no signal from outside comes at such a moment
    LocalStore(Path(folder)).create("part", b"whole")


def generating(run: PlanResult) -> Child:
    """The command that makes the run's shard, when it has drawn its first batch."""
    child = Child(command, "generate", run.uri, "--shard", "0")
    child.wait_until_begun()
    return child


def test_terminated_shard_exits_75_and_a_rerun_completes_it(
    tmp_path: Path, undisturbed: Dataset
) -> None:
    run = plan_run(tmp_path, str(tmp_path / "out"), IMAGES)
    store = open_store(run.uri)
    parts = read_shard(store, run.plan, 0)
    child = generating(run)
    child.terminate()
    assert child.join(GRACE_SECONDS) == 75
    missing = missing_parts(store, parts)
    stats = stats_of(store.uri, 0)
    assert stats is not None
    assert (stats.attempts, stats.parts, stats.images) == (
        1,
        len(parts) - len(missing),
        IMAGES - count_images(missing),
    )
    assert 0 < len(missing) < len(parts)
    assert missing == list(parts[-len(missing) :])
    assert Child(command, "generate", run.uri, "--shard", "0").join() == 0
    stats = stats_of(store.uri, 0)
    assert stats is not None
    assert (stats.attempts, stats.parts, stats.images) == (2, len(parts), IMAGES)
    assert_same(finish_run(run), undisturbed)


def test_terminated_shard_finishes_the_part_at_hand_where_that_is_quick(tmp_path: Path) -> None:
    run = plan_run(tmp_path, str(tmp_path / "out"), 12, part={"images": 12}, batch={"images": 2})
    child = generating(run)
    assert not open_store(run.uri).exists(part_key(0, 0))
    child.terminate()
    assert child.join(GRACE_SECONDS) == 0
    assert open_store(run.uri).exists(part_key(0, 0))


@S3_AMONG_SLOW
def test_killed_retry_ends_as_an_undisturbed_one(
    tmp_path: Path, store_uri: str, undisturbed: Dataset
) -> None:
    run = plan_run(tmp_path, store_uri, IMAGES)
    store = open_store(run.uri)
    parts = read_shard(store, run.plan, 0)
    assert Child(command, "generate", run.uri, "--shard", "0").join() == 0
    for part in parts[1:]:
        store.remove(part.key)
    assert Child(command, "aggregate", run.uri).join() == 3
    for _ in range(2):
        child = Child(command, "retry", run.uri)
        child.wait_until_begun()
        assert child.kill()
    assert missing_parts(store, parts)
    assert Child(command, "retry", run.uri).join() == 0
    assert not open_run(run.uri).retry_plans  # missing parts are made as they were planned
    assert_same(finish_run(run), undisturbed)
