"""What may go, and that nothing else does."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.maintain import gc as gc_module
from imagekiln.steps.maintain.gc import Garbage, gc, remove_garbage, walk_objects
from imagekiln.steps.maintain.retry import retry
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import (
    PLAN_KEY,
    SUCCESS_KEY,
    part_key,
)
from imagekiln.steps.runs.rounds import Run, open_run
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from tests.jobs import files
from tests.runs import PROMPTS, Rows, fill, not_ok, planned

DAY = 86_400


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


def without_turns(folder: Path) -> dict[str, bytes]:
    """The files of a run, but for who began to remove it."""
    return {name: each for name, each in files(folder).items() if not name.startswith("turns/")}


def reasons(result: tuple[Garbage, ...]) -> dict[str, str]:
    return {Path(each.run).name: each.reason for each in result}


def test_an_old_unfinished_run_is_listed_and_removed_only_on_request(tmp_path: Path) -> None:
    finished_run(tmp_path, "good")
    planned_run = finished_run(tmp_path, "half", done=False)
    before = files(tmp_path / "out")
    result = gc(str(tmp_path / "out"))
    size = sum(len(content) for name, content in before.items() if name.startswith("half/"))
    (garbage,) = result.found
    assert (garbage.run, garbage.reason, garbage.bytes, result.removed) == (
        planned_run.uri,
        "unfinished",
        size,
        False,
    )
    assert garbage.objects == sum(name.startswith("half/") for name in before)
    assert garbage.days == pytest.approx(10, abs=0.1)
    assert files(tmp_path / "out") == before
    assert gc(str(tmp_path / "out"), remove=True).bytes == size
    assert files(tmp_path / "out") == {
        name: each for name, each in before.items() if not name.startswith("half/")
    }
    assert not Path(planned_run.uri).exists()
    assert gc(str(tmp_path / "out")).found == ()


@pytest.mark.parametrize("key", [PLAN_KEY, part_key(2, 0)])
def test_a_run_to_which_anything_was_written_recently_stays(key: str, tmp_path: Path) -> None:
    planned_run = finished_run(tmp_path, "half", done=False)
    os.utime(Path(planned_run.uri) / key)
    assert gc(str(tmp_path / "out")).found == ()
    assert gc(str(tmp_path / "out"), remove=True).found == ()
    assert reasons(gc(str(tmp_path / "out"), 0).found) == {"half": "unfinished"}


def test_a_run_whose_images_others_skipped_stays_whatever_its_state(tmp_path: Path) -> None:
    first = finished_run(tmp_path, "monday", PROMPTS[:6])
    second = finished_run(tmp_path, "tuesday", PROMPTS, skip_existing=True)
    assert second.plan.counts.existing_images == 6
    open_store(first.uri).remove(SUCCESS_KEY)
    aged(tmp_path / "out", 10)
    assert gc(str(tmp_path / "out"), remove=True).found == ()


def test_what_a_run_with_a_damaged_plan_may_need_stays_and_other_garbage_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "out"
    first = finished_run(tmp_path, "monday", PROMPTS[:6])
    second = finished_run(tmp_path, "tuesday", PROMPTS, skip_existing=True)
    finished_run(tmp_path, "half", done=False)
    open_store(first.uri).remove(SUCCESS_KEY)
    Path(second.uri, PLAN_KEY).write_text("{")
    aged(output, 10)
    assert reasons(gc(str(output), remove=True).found) == {"half": "unfinished"}
    assert "is not a readable plan" in caplog.text
    assert {"monday", "tuesday"} <= {path.name for path in output.iterdir()}


def test_a_run_that_cannot_be_read_is_named_and_hides_no_garbage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished_run(tmp_path, "half", done=False)
    unreadable = Path(finished_run(tmp_path, "unreadable").uri, "retry-1", PLAN_KEY)
    unreadable.parent.mkdir(exist_ok=True)
    unreadable.symlink_to(unreadable.name)
    assert reasons(gc(str(tmp_path / "out"), remove=True).found) == {"half": "unfinished"}
    assert f"{unreadable}: cannot be used" in caplog.text
    assert unreadable.is_symlink()


def test_a_finished_run_stays_even_where_a_later_one_of_its_name_holds_all_of_it(
    tmp_path: Path,
) -> None:
    finished_run(tmp_path, "monday", PROMPTS[:6], days=30)
    finished_run(tmp_path, "tuesday", PROMPTS, days=20)
    before = files(tmp_path / "out")
    assert gc(str(tmp_path / "out"), remove=True).found == ()
    assert files(tmp_path / "out") == before


def test_what_killed_writers_left_in_a_finished_run_goes_and_the_run_stays(tmp_path: Path) -> None:
    planned_run = finished_run(tmp_path, "good")
    run = Path(planned_run.uri)
    before = files(run)
    left = [
        "images/.writing-abcdefg1",
        "shards/.writing-x_______",
        "images/00009-0000.parquet",
        "images/00000-0007.tar",
    ]
    mine = [
        "notes.txt",
        "images/.writing-a-poem",
        "images/mine.parquet",
        "images/picture.png",
        "images/00000/readme.txt",
    ]
    image = (
        "images/00001/0000-00003.png"  # another attempt's, of a format with a file for each image
    )
    for name in [*left, *mine, image]:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(b"12345")
    aged(run, 10)
    (run / "images/.writing-new_____").write_bytes(b"1")
    (garbage,) = gc(str(tmp_path / "out"), remove=True).found
    assert (garbage.reason, garbage.objects, garbage.bytes) == ("leftovers", 5, 25)
    assert set(files(run)) == set(before) | set(mine) | {"images/.writing-new_____"}
    assert {name: files(run)[name] for name in before} == before
    assert verify(planned_run.uri).ok == 20


@pytest.mark.slow
def test_parts_of_rounds_are_named_by_the_manifest_and_stay(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), run_id="run", limits={"failed_share": 1})
    fill(planned_run, {3: not_ok(3)})
    aggregate(planned_run.uri)
    retry(planned_run.uri)
    folder = Path(planned_run.uri) / "retry-1/images"
    (folder / "00000").mkdir()
    strays = [
        folder / "00000-0001.parquet",
        folder / "00000/0000-00003.png",
    ]  # the second is another attempt's
    for stray in strays:
        stray.write_bytes(b"stray")
    aged(Path(planned_run.uri), 10)
    assert gc(str(tmp_path / "out"), remove=True).bytes == 10
    assert not any(stray.exists() for stray in strays)
    assert verify(planned_run.uri).ok == 20


def test_images_of_a_lost_part_stay_for_its_repair(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), PROMPTS[:8], run_id="run", format="files")
    part = fill(run)[1]
    aggregate(run.uri)
    (Path(run.uri) / part.key).unlink()
    assert gc(str(tmp_path / "out"), -1, remove=True).found == ()
    aggregate(run.uri)  # commits what lacks only its commit
    assert verify(run.uri).ok == 8


def test_what_is_no_run_of_ours_is_never_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    planned_run = finished_run(tmp_path, "half", done=False)
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
    assert reasons(gc(str(out), remove=True).found) == {"half": "unfinished"}
    assert {"copy", "stranger", "odd", "linked", "plan.json"} <= {
        path.name for path in out.iterdir()
    }
    assert files(tmp_path / "elsewhere") == elsewhere


class Dying(LocalStore):
    """A disk that goes away after so many removals; `then` is called before the last of them."""

    def __init__(self, folder: str, allowed: int, then: Callable[[], object] | None = None) -> None:
        super().__init__(Path(folder))
        self._allowed = allowed
        self._then = then

    def remove(self, key: str) -> None:
        if not self._allowed and self._then is None:
            raise TryAgain("storage went away")
        super().remove(key)
        self._allowed -= 1
        if not self._allowed and self._then is not None:
            self._then()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("resumes", [False, True], ids=["removed again", "planned again"])
def test_an_interrupted_removal_is_resumed_and_so_is_the_run(
    resumes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = finished_run(tmp_path, "half", done=False)
    (garbage,) = gc(str(tmp_path / "out")).found
    whole = files(Path(half.uri))
    monkeypatch.setattr(gc_module, "REMOVE_THREADS", 1)
    for allowed in range(1, len(whole)):
        with pytest.raises(TryAgain):
            remove_garbage(Run(Dying(half.uri, allowed), half.plan), garbage, time.time())
        assert (Path(half.uri) / PLAN_KEY).exists()
        if not resumes:
            assert reasons(gc(str(tmp_path / "out"), 0, remove=True).found) == {
                "half": "unfinished"
            }
            assert not Path(half.uri).exists()
        finished_run(tmp_path, "half", done=False)
        assert without_turns(Path(half.uri)) == whole


@pytest.mark.slow
def test_whoever_resumes_a_run_while_it_is_removed_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = finished_run(tmp_path, "half", done=False)
    (garbage,) = gc(str(tmp_path / "out")).found
    objects = len(files(Path(half.uri)))
    monkeypatch.setattr(gc_module, "REMOVE_THREADS", 1)

    def resume() -> None:
        finished_run(tmp_path, "half", days=0)

    for removals in range(1, objects):
        store = Dying(half.uri, removals, resume)
        with pytest.raises(TryAgain, match="another process has begun"):
            remove_garbage(Run(store, half.plan), garbage, time.time() - DAY)
        assert verify(half.uri).ok == 20
        (Path(half.uri) / SUCCESS_KEY).unlink()
        aged(Path(half.uri), 10)


def test_a_run_finished_in_the_meantime_stays(tmp_path: Path) -> None:
    half = finished_run(tmp_path, "half", done=False)
    (garbage,) = gc(str(tmp_path / "out")).found
    aggregate(half.uri)
    before = without_turns(Path(half.uri))
    remove_garbage(open_run(half.uri), garbage, cutoff=time.time())
    assert without_turns(Path(half.uri)) == before


@pytest.mark.slow
def test_gc_on_s3_keeps_to_its_folder(tmp_path: Path, s3_bucket: str) -> None:
    out = f"{s3_bucket}/out"
    good = planned(tmp_path, out, run_id="good")
    fill(good)
    aggregate(good.uri)
    half = planned(tmp_path, out, PROMPTS[:8], run_id="half")
    fill(half)
    s3 = fsspec.filesystem("s3", skip_instance_cache=True)
    neighbours = [
        f"{s3_bucket}/outside/plan.json",
        f"{s3_bucket}/out-half/plan.json",
        f"{s3_bucket}/out/half-2/x",
    ]
    for name in neighbours:
        s3.pipe_file(name, b"mine")
    assert gc(out).found == (), "all of it is new"
    assert reasons(gc(out, 0).found) == {"half": "unfinished"}
    assert gc(out, 0, remove=True).removed
    assert list(walk_objects(open_store(half.uri))) == []
    assert all(s3.exists(name) for name in neighbours)
    assert verify(good.uri).ok == 20


def test_folder_that_is_no_output_is_refused(tmp_path: Path, s3_bucket: str) -> None:
    with pytest.raises(Missing, match="no such folder"):
        gc(str(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match="holds no runs"):
        gc(f"{s3_bucket}/nowhere")

    run = finished_run(tmp_path, "mine").uri
    with pytest.raises(BadInput) as raised:
        gc(run)
    assert str(raised.value) == (
        f"{run}: is a run, not the output that holds runs. Name {tmp_path}/out."
    )


def test_output_whose_runs_are_all_gone_is_still_one(tmp_path: Path) -> None:
    run = finished_run(tmp_path, "mine").uri
    shutil.rmtree(run)
    assert gc(str(tmp_path / "out")).found == ()
