"""Processes killed by SIGKILL at random moments, many times: nothing is lost or corrupted.

Slow since real pipelines start again after each kill; tests/steps/generate/test_kill.py has few.
"""

import time
from pathlib import Path

import pytest

from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.storage import open_store
from tests.jobs import files
from tests.kills import Dataset, finish_run, job, make_undisturbed, make_with_kills, plan_run
from tests.processes import Child, create, make_plan
from tests.texts import chance

IMAGES = 360
KILLS = 60
MIB = 2**20


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The dataset of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return make_undisturbed(plan_run(folder, str(folder / "out"), IMAGES))


def test_run_killed_sixty_times_ends_as_the_dataset_of_an_undisturbed_one(
    store_uri: str, tmp_path: Path, undisturbed: Dataset
) -> None:
    run = plan_run(tmp_path, store_uri, IMAGES)
    assert make_with_kills(run, KILLS, seed=7).between >= KILLS
    dataset = finish_run(run)
    assert dataset.parts == undisturbed.parts
    assert dataset.manifest.equals(undisturbed.manifest, check_metadata=True)
    assert dataset.verified.ok == undisturbed.verified.ok == IMAGES


def test_killed_planning_ends_as_the_plan_of_an_undisturbed_one(
    store_uri: str, tmp_path: Path
) -> None:
    settings = {"shard": {"images": 16}}
    plan_run(tmp_path, str(tmp_path / "undisturbed"), 600, **settings)
    undisturbed = files(tmp_path / "undisturbed/run")
    killed_job = job(tmp_path, store_uri, 600, **settings)
    dice = chance(7)
    store = open_store(f"{store_uri}/run")
    killed_between = 0
    for shard in range(0, 30, 3):  # a little later each time
        child = Child(make_plan, killed_job)
        while child.is_alive() and len([*store.list_folder("shards")]) <= shard:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 0.01))
        killed_between += child.kill() and not store.exists(PLAN_KEY)
    assert killed_between
    assert Child(make_plan, killed_job).join() == 0
    plan = undisturbed.pop(PLAN_KEY).replace(
        str(tmp_path / "undisturbed").encode(), store_uri.encode()
    )
    assert store.read(PLAN_KEY) == plan
    assert {name: store.read(name) for name in undisturbed} == undisturbed


@pytest.mark.parametrize("size", [32 * MIB, 101 * MIB], ids=["small", "large"])
def test_object_whose_writer_is_killed_exists_whole_or_not_at_all(
    store_uri: str, size: int
) -> None:
    store = open_store(store_uri)
    dice = chance(7)
    content = bytes(size)
    whole = []
    for number in range(12):
        child = Child(create, store_uri, f"object-{number}", size)
        child.wait_until_begun()
        time.sleep(dice.uniform(0, 0.8) * (2 if size > 50 * MIB else 1))
        child.kill()
        whole.append(store.exists(f"object-{number}"))
        if whole[-1]:
            assert store.read(f"object-{number}") == content
            store.remove(f"object-{number}")
    assert not all(whole)
