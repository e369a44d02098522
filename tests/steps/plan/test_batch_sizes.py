"""What planning freezes: the job's number, the tuning file's entry, or a plain number."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.tuning_file import TuningEntry
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.sharding import TuningEntries
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.plan import BatchSize, Plan, load_plan
from imagekiln.steps.storage import open_store
from tests.jobs import Columns, job
from tests.jobs import plan as planned
from tests.tuned import entry, tuned_file

ROWS = {"prompt": ["a", "b", "c"]}
SIZES = {"prompt": ["a", "b", "c", "d"], "width": [64, 128, 64, 128], "height": [64, 128, 64, 128]}


def _plan(folder: Path, columns: Columns = ROWS, /, **settings: object) -> Plan:
    return planned(folder, columns, **settings).plan


def _tuned(folder: Path, *entries: TuningEntry, **more: object) -> dict[str, object]:
    return {"batch": {"tuning": tuned_file(folder, *entries), **more}}


def test_the_tuning_files_entry_is_frozen(tmp_path: Path) -> None:
    result = planned(
        tmp_path,
        ROWS,
        **_tuned(tmp_path, entry(batch=16), entry(batch=2, gpu="a GPU", dtype="float16")),
    )
    assert (
        load_plan(open_store(result.uri)).batch_sizes
        == result.plan.batch_sizes
        == (BatchSize(64, 64, 16),)
    )
    assert result.plan.max_batch_size == 16


def test_each_size_has_a_batch_of_its_own_and_a_part_is_whole_batches_of_all(
    tmp_path: Path,
) -> None:
    tuned = _tuned(tmp_path, entry(batch=128), entry(width=128, height=128, batch=2))
    run_plan = _plan(tmp_path, SIZES, **tuned)
    assert run_plan.batch_sizes == (BatchSize(64, 64, 128), BatchSize(128, 128, 2))
    assert (run_plan.batch_size(64, 64), run_plan.batch_size(128, 128)) == (128, 2)
    assert run_plan.part_images == 128


@pytest.mark.parametrize(
    ("width", "height", "guided", "images"),
    [
        (64, 64, True, 8),
        (32, 32, True, 8),  # less than any entry: the next that asks more
        (64, 96, True, 2),  # between two: the larger one's
        (128, 128, True, 2),
        (256, 128, True, 1),  # more than all: no more pixels than in those
        (512, 512, True, 1),
        (64, 64, False, 8),
        (128, 128, False, 2),
    ],
)
def test_a_size_without_an_entry_takes_no_more_of_the_device_than_those_with_one(
    width: int, height: int, guided: bool, images: int
) -> None:
    tuned = TuningEntries((entry(batch=8), entry(width=128, height=128, batch=2)))
    assert tuned.batch_size_for(width, height, guided=guided) == images


def test_two_gpus_in_the_file_are_refused(tmp_path: Path) -> None:
    slices = entry(batch=4), entry(gpu="a GPU MIG 1g.10gb", gpu_gib=9.5, batch=1)
    with pytest.raises(BadInput) as caught:
        _plan(tmp_path, **_tuned(tmp_path, *slices))
    assert str(caught.value) == (
        f"{tmp_path}/tuning.yaml: has entries for several GPUs (a GPU, a GPU MIG 1g.10gb). "
        "Tune each into a file of its own."
    )


def test_runs_id_changes_with_the_entry_that_is_used_and_with_no_other(tmp_path: Path) -> None:
    first = _plan(tmp_path, **_tuned(tmp_path, entry(batch=4))).run_id
    others = (
        entry(digest="sha256:0"),
        entry(width=128),
        entry(guided=False),
        entry(dtype="float16", gpu="another"),
    )
    assert _plan(tmp_path, **_tuned(tmp_path, *others)).run_id == first
    assert _plan(tmp_path, **_tuned(tmp_path, entry(batch=8))).run_id != first


def test_a_named_run_keeps_its_batches_whatever_is_tuned_later(tmp_path: Path) -> None:
    def again(batch: int) -> PlanResult:
        return make_plan(job(tmp_path, ROWS, run_id="one", **_tuned(tmp_path, entry(batch=batch))))

    assert not again(4).adopted
    result = again(8)
    assert (result.adopted, result.plan.max_batch_size) == (True, 4)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"absent\.yaml: no such"):
        _plan(tmp_path, batch={"tuning": str(tmp_path / "absent.yaml")})


def test_minutes_and_hours_follow_from_what_was_measured(tmp_path: Path) -> None:
    tuned = _tuned(tmp_path, entry(batch=4, steps=60, seconds_per_image=2.0))
    configured = job(
        tmp_path,
        {"prompt": ["a"], "images": [300]},
        **tuned,
        defaults={"steps": 30},
        shard={"minutes": 1},
        part={"images": 4},
    )
    assert estimate(configured).gpu_hours == pytest.approx(
        300 / 3600
    )  # with half as many steps, a second each
    run_plan = make_plan(configured).plan
    assert {shard.images for shard in run_plan.shards} == {60}
    slower = _tuned(tmp_path, entry(batch=4, steps=60, seconds_per_image=4.0))
    assert _plan(tmp_path, {"prompt": ["a"], "images": [300]}, **slower).run_id != run_plan.run_id
