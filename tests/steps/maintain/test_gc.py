"""What may go, and that nothing else does."""

import os
import shutil
import time
from functools import partial
from pathlib import Path

import pytest

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Incomplete, Missing
from imagekiln.steps.generate.start import generate
from imagekiln.steps.maintain.gc import Garbage, gc
from imagekiln.steps.maintain.retry import retry
from imagekiln.steps.maintain.run_list import list_runs
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import PLAN_KEY, part_key
from imagekiln.steps.runs.parts import pack_part
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from tests.interleaving import Process, frozen, interleaving
from tests.jobs import files
from tests.runs import PROMPTS, Rows, encoded, fill, not_ok, planned

DAY = 86_400
LEFT = {"half/commits/000000.json", "half/plan.json"}  # they say that the run was removed


def finished_run(
    folder: Path,
    run_id: str,
    rows: Rows = PROMPTS,
    *,
    days: float = 10,
    done: bool = True,
    **changes: object,
) -> PlanResult:
    """A run under `folder`/out, finished or not, so many days old."""
    planned_run = planned(folder, str(folder / "out"), rows, run_id=run_id, **changes)
    fill(planned_run)
    if done:
        aggregate(planned_run.uri)
    aged(Path(planned_run.uri), days)
    return planned_run


def aged(folder: Path, days: float) -> None:
    """Make everything in a folder so many days old."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (time.time() - days * DAY,) * 2)


def names(result: tuple[Garbage, ...]) -> list[str]:
    return [Path(each.run).name for each in result]


def test_an_old_unfinished_run_is_listed_and_removed_only_on_request(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    finished_run(tmp_path, "good")
    planned_run = finished_run(tmp_path, "half", done=False)
    before = files(tmp_path / "out")
    result = gc(output)
    size = sum(len(content) for name, content in before.items() if name.startswith("half/"))
    (garbage,) = result.found
    assert (garbage.run, garbage.bytes, result.removed) == (planned_run.uri, size, False)
    assert garbage.objects == sum(name.startswith("half/") for name in before)
    assert garbage.days == pytest.approx(10, abs=0.1)
    assert files(tmp_path / "out") == before
    assert gc(output, remove=True).bytes == size
    after = files(tmp_path / "out")
    assert {name for name in after if name.startswith("half/")} == LEFT
    assert {name for name in before if name not in after} == {
        name for name in before if name.startswith("half/") and name not in LEFT
    }
    assert gc(output, 0).found == ()
    assert [run.run_id for run in list_runs(output)] == ["good"]


def test_a_removed_run_is_neither_resumed_nor_read(tmp_path: Path) -> None:
    run = finished_run(tmp_path, "half", done=False)
    assert gc(str(tmp_path / "out"), remove=True).removed
    plan_again = partial(planned, tmp_path, str(tmp_path / "out"), PROMPTS, run_id="half")
    for command in (
        plan_again,
        partial(generate, run.uri, 0),
        partial(aggregate, run.uri),
        partial(retry, run.uri),
        partial(verify, run.uri),
        partial(imagekiln.export, run.uri, tmp_path / "export"),
    ):
        with pytest.raises(BadInput, match=r"half: was removed by `imagekiln gc`\. Choose another"):
            command()
    assert imagekiln.forget(tmp_path / "out", ids=["row-1"], remove=True).images == 0
    assert set(files(tmp_path / "out")) == LEFT


def test_a_removal_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    for accesses in range(1, 200, 9):
        finished_run(tmp_path, "half", done=False)
        with interleaving(tmp_path / "out", lambda *_: None):
            process = Process("gc", partial(gc, output, remove=True))
            process.step(accesses)
            process.kill()
        is_done = process.is_done
        gc(output, remove=True)
        assert set(files(tmp_path / "out")) == LEFT
        shutil.rmtree(tmp_path / "out")
        if is_done:
            return
    raise AssertionError("it was never done")


def test_what_a_process_wrote_after_the_removal_goes_the_next_time(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    run = planned(tmp_path, output, run_id="half")
    part = read_shard(open_store(run.uri), run.plan, 0)[0]
    packed = pack_part(part, [encoded(place) for place in range(4)])
    with interleaving(tmp_path / "out", lambda *_: None):
        late = frozen(lambda: packed.commit(open_store(run.uri)), "create", part.key)
        gc(output, 0, remove=True)
        late.finish()
    assert gc(output).found[0].objects == 1
    gc(output, remove=True)  # however young
    assert set(files(tmp_path / "out")) == LEFT


def test_whoever_commits_to_a_run_while_it_is_to_be_removed_keeps_it(tmp_path: Path) -> None:
    run = finished_run(tmp_path, "half", done=False)
    finished_run(tmp_path, "other", done=False)
    with interleaving(tmp_path / "out", lambda *_: None):
        removal = frozen(
            partial(gc, str(tmp_path / "out"), remove=True), "create", "half/commits/000000.json"
        )
        aggregate(run.uri)
        removal.finish()
    assert removal.error is None
    assert verify(run.uri).ok == 20
    assert "other/images/00000-0000.parquet" not in files(tmp_path / "out")


def test_a_run_that_was_finished_once_stays_whatever_is_accepted_of_it_later(
    tmp_path: Path,
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), run_id="run", limits={"failed_share": 1})
    fill(run, {3: not_ok(3)})
    aggregate(run.uri)
    with pytest.raises(Incomplete):
        aggregate(run.uri, 0.0)
    aged(Path(run.uri), 10)
    assert gc(str(tmp_path / "out"), remove=True).found == ()
    assert aggregate(run.uri, 1.0).ok == 19


@pytest.mark.parametrize("key", [PLAN_KEY, part_key(2, 0)])
def test_a_run_to_which_anything_was_written_recently_stays(key: str, tmp_path: Path) -> None:
    planned_run = finished_run(tmp_path, "half", done=False)
    os.utime(Path(planned_run.uri) / key)
    assert gc(str(tmp_path / "out")).found == ()
    assert gc(str(tmp_path / "out"), remove=True).found == ()
    assert names(gc(str(tmp_path / "out"), 0).found) == ["half"]


def test_what_is_no_run_of_ours_is_never_touched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    planned_run = finished_run(tmp_path, "half", done=False)
    damaged = Path(finished_run(tmp_path, "damaged", done=False).uri)
    (damaged / PLAN_KEY).write_text("{")
    before = files(damaged)
    shutil.copytree(planned_run.uri, out / "copy")  # its plan has another name
    (out / "stranger").mkdir()
    (out / "stranger" / "shards").write_bytes(b"mine")
    (out / "odd").mkdir()
    (out / "odd" / "plan.json").write_bytes(b'{"schema_version": 1}')
    (out / "plan.json").write_bytes(b"{}")
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(planned_run.uri, tmp_path / "elsewhere" / "linked")
    (out / "linked").symlink_to(tmp_path / "elsewhere" / "linked")
    (Path(planned_run.uri) / "link").symlink_to(tmp_path / "elsewhere")
    aged(out, 10)
    elsewhere = files(tmp_path / "elsewhere")
    assert names(gc(str(out), remove=True).found) == ["half"]
    assert {"copy", "stranger", "odd", "linked", "plan.json"} <= {
        path.name for path in out.iterdir()
    }
    assert files(tmp_path / "elsewhere") == elsewhere
    assert files(damaged) == before
    assert "is not a readable plan" in caplog.text


def test_folder_that_is_no_output_is_refused(tmp_path: Path, s3_bucket: str) -> None:
    run = finished_run(tmp_path, "mine").uri
    for folder in (str(tmp_path / "nowhere"), f"{s3_bucket}/nowhere", run):
        with pytest.raises(Missing, match=f"{folder}: holds no runs"):
            gc(folder)
