"""What may go, and that nothing else does."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.preview import judge_first_shard
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Incomplete, Missing, TryAgain
from imagekiln.steps.maintain import gc as gc_module
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.gc import Garbage, gc, remove_garbage
from imagekiln.steps.maintain.leftovers import walk_objects
from imagekiln.steps.maintain.retry import retry
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import (
    DUPLICATES_KEY,
    PLAN_KEY,
    RUN_KEY_PATTERN,
    SUCCESS_KEY,
    TERMS_KEY,
    TURNS_FOLDER,
    manifest_key,
    part_key,
    shard_key,
)
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import load_plan, plan_to_json
from imagekiln.steps.runs.rounds import Run, open_run
from imagekiln.steps.runs.turns import TurnStore
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from imagekiln.steps.storage.store import ObjectInfo, Store
from tests import jobs, models
from tests.interleaving import Process, frozen, interleaving
from tests.jobs import files
from tests.pictures import noise
from tests.runs import PROMPTS, Rows, begin_round, fill, not_ok, planned

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


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("key", [PLAN_KEY, part_key(2, 0), shard_key(0)])
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


def test_what_a_run_that_was_moved_behind_a_link_needs_stays(tmp_path: Path) -> None:
    output = tmp_path / "out"
    first = finished_run(tmp_path, "monday", PROMPTS[:6])
    second = finished_run(tmp_path, "tuesday", PROMPTS, skip_existing=True)
    open_store(first.uri).remove(SUCCESS_KEY)
    moved = shutil.move(second.uri, tmp_path / "elsewhere")
    Path(second.uri).symlink_to(moved)
    aged(output, 10)
    assert gc(str(output), remove=True).found == ()


@pytest.mark.parametrize("key", [f"retry-1/{PLAN_KEY}", SUCCESS_KEY], ids=["round", "marker"])
def test_a_run_that_cannot_be_read_is_named_and_hides_no_garbage(
    key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished_run(tmp_path, "half", done=False)
    unreadable = Path(finished_run(tmp_path, "unreadable").uri, key)
    unreadable.parent.mkdir(exist_ok=True)
    unreadable.unlink(missing_ok=True)
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


@pytest.mark.slow
@pytest.mark.parametrize("first", ["round", "late part"])
def test_image_that_a_round_and_a_late_pod_made_keeps_its_copy_and_both_stay(
    first: str, tmp_path: Path
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), PROMPTS[:8], run_id="run", format="files")
    folder = Path(run.uri)
    late_part = _take_away(folder, fill(run)[1])
    with pytest.raises(Incomplete):
        aggregate(run.uri)
    retry_round = begin_round(run)
    round_run = PlanResult(retry_round.plan, retry_round.store.uri, adopted=False)
    commits: dict[str, Callable[[], object]] = {
        "round": lambda: fill(round_run),
        "late part": lambda: [
            (folder / name).write_bytes(each) for name, each in late_part.items()
        ],
    }
    commits.pop(first)()
    aggregate(run.uri)
    manifest = (folder / manifest_key(0)).read_bytes()

    commits.popitem()[1]()
    if first == "round":  # otherwise, the round waits for its aggregation
        assert verify(run.uri).ok == 8
    aggregate(run.uri)
    assert verify(run.uri).ok == 8
    assert gc(str(tmp_path / "out"), -1, remove=True).found == ()
    assert (folder / manifest_key(0)).read_bytes() == manifest
    (folder / manifest_key(0)).unlink()
    aggregate(run.uri)
    assert verify(run.uri).ok == 8


def test_images_of_a_lost_part_stay_for_its_repair(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), PROMPTS[:8], run_id="run", format="files")
    part = fill(run)[1]
    aggregate(run.uri)
    (Path(run.uri) / part.key).unlink()
    assert gc(str(tmp_path / "out"), -1, remove=True).found == ()
    aggregate(run.uri)  # commits what lacks only its commit
    assert verify(run.uri).ok == 8


def test_files_of_a_round_that_is_resumed_meanwhile_stay(tmp_path: Path) -> None:
    run = planned(
        tmp_path,
        str(tmp_path / "out"),
        PROMPTS[:4],
        run_id="run",
        format="files",
        limits={"failed_share": 1},
    )
    fill(run, {1: not_ok(1)})
    aggregate(run.uri)
    retry_round = begin_round(run)
    round_run = PlanResult(retry_round.plan, retry_round.store.uri, adopted=False)
    (part,) = fill(round_run)
    (Path(retry_round.store.uri) / part.key).unlink()  # whoever made it was killed before
    aged(Path(run.uri), 10)
    with interleaving(tmp_path, lambda *_: None):
        collection = Process("gc", lambda: gc(str(tmp_path / "out"), remove=True))
        while not (collection.is_done or collection.next_access[0] == "remove"):
            collection.step()
        fill(round_run)
        aggregate(run.uri)
        collection.finish()
    assert verify(run.uri).ok == 4


def test_run_stays_where_taking_images_down_was_interrupted(tmp_path: Path) -> None:
    run = finished_run(tmp_path, "run", format="files")
    ids = ForgetSelection(ids=("row-3",))
    with interleaving(tmp_path, lambda *_: None):
        removal = partial(forget, run.uri, ids, remove=True)
        frozen(removal, "replace_after", "0000-00003.json").kill()
    assert not open_run(run.uri).is_finished
    aged(Path(run.uri), 10)
    assert gc(str(tmp_path / "out"), remove=True).found == ()
    forget(run.uri, ids, remove=True)
    assert verify(run.uri).ok == 19

    open_store(run.uri).remove(SUCCESS_KEY)  # as whoever deletes a run does
    aged(Path(run.uri), 10)
    assert reasons(gc(str(tmp_path / "out")).found) == {"run": "unfinished"}


def _take_away(folder: Path, part: Part) -> dict[str, bytes]:
    """Remove the second part of a run's first shard, and return its objects, the commit last."""
    objects = {name: content for name, content in files(folder).items() if "/0001-" in name}
    objects[part.key] = (folder / part.key).read_bytes()
    for name in objects:
        (folder / name).unlink()
    return objects


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


def _begin_removal(run: PlanResult, removals: int) -> None:
    """Remove a run, with a disk that goes away after so many removals."""
    (garbage,) = (
        each for each in gc(str(Path(run.uri).parent)).found if each.reason == "unfinished"
    )
    with pytest.raises(TryAgain):
        remove_garbage(Run(Dying(run.uri, removals), run.plan), garbage, time.time())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("removals", [1, 4])
def test_half_removed_run_is_planned_by_what_it_had_chosen_whatever_was_finished_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    monkeypatch.setattr(gc_module, "REMOVE_THREADS", 1)
    tuesday = finished_run(tmp_path, "tuesday", done=False, skip_existing=True)
    whole = files(Path(tuesday.uri))
    _begin_removal(tuesday, removals)
    finished_run(tmp_path, "monday", PROMPTS[:8])
    again = finished_run(tmp_path, "tuesday", done=False, skip_existing=True)
    assert again.plan == tuesday.plan
    assert without_turns(Path(again.uri)) == whole


def test_run_that_a_removal_has_left_without_input_images_gets_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pictures_first(store: Store) -> list[ObjectInfo]:
        return sorted(walk_objects(store), key=lambda entry: not entry.key.startswith("inputs/"))

    pictures = [noise(seed) for seed in range(2)]
    table = pa.table({"prompt": ["a", "b"], "source_image": pictures})
    model = {"id": str(models.folder("sd")), "dtype": "float32"}
    half = jobs.plan(tmp_path, table, model=model)
    whole = files(Path(half.uri))
    aged(Path(half.uri), 10)
    monkeypatch.setattr(gc_module, "REMOVE_THREADS", 1)
    monkeypatch.setattr(gc_module, "walk_objects", pictures_first)
    _begin_removal(half, 2)
    assert jobs.plan(tmp_path, table, model=model).plan == half.plan
    assert without_turns(Path(half.uri)) == whole


def test_half_removed_run_is_not_planned_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_module, "REMOVE_THREADS", 1)
    half = finished_run(tmp_path, "half", done=False)
    _begin_removal(half, 3)
    before = files(Path(half.uri))
    with pytest.raises(BadInput, match="shards or lists of its plan are missing"):
        planned(tmp_path, str(tmp_path / "out"), PROMPTS[:8], run_id="half")
    assert files(Path(half.uri)).keys() - before.keys() <= {TERMS_KEY}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("turns", [1, 2, 5])
def test_run_whose_removal_was_killed_among_its_turns_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    half = finished_run(tmp_path, "half", done=False)
    for _ in range(5):
        TurnStore(open_store(half.uri))
    (garbage,) = gc(str(tmp_path / "out")).found
    objects = len(without_turns(Path(half.uri)))
    monkeypatch.setattr(gc_module, "REMOVE_THREADS", 1)
    removing = Dying(half.uri, objects + turns)
    with pytest.raises(TryAgain, match="went away"):
        remove_garbage(Run(removing, half.plan), garbage, time.time())
    left = sorted(path.name for path in (Path(half.uri) / TURNS_FOLDER).iterdir())
    assert left == [f"{number:06}.json" for number in range(turns, 6)]
    finished_run(tmp_path, "half")


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("steps_left", range(1, 13))
def test_removal_frozen_before_its_last_steps_leaves_a_run_that_was_made_since(
    tmp_path: Path, steps_left: int
) -> None:
    def begin_removal(name: str) -> tuple[PlanResult, Process]:
        half = finished_run(tmp_path / name, "half", PROMPTS[:2], done=False)
        return half, Process("gc", partial(gc, str(tmp_path / name / "out"), 0, remove=True))

    with interleaving(tmp_path, lambda *_: None):
        _, undisturbed = begin_removal("undisturbed")
        steps = 0
        while not undisturbed.is_done:
            undisturbed.step()
            steps += 1
        half, zombie = begin_removal("frozen")
        zombie.step(steps - steps_left)
        finished_run(tmp_path / "frozen", "half", PROMPTS[:2])
        zombie.finish()
    assert zombie.error is None or isinstance(zombie.error, TryAgain)
    assert verify(half.uri).ok == 2


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("accesses", range(1, 7))
def test_planner_that_wakes_during_a_removal_does_not_make_a_half_removed_run_look_whole(
    tmp_path: Path, accesses: int
) -> None:
    plan = partial(finished_run, tmp_path, "half", PROMPTS[:2], done=False)
    with interleaving(tmp_path, lambda *_: None):
        late_planner = frozen(plan, "create", shard_key(0))
        half = plan()
        removal = Process("gc", partial(gc, str(tmp_path / "out"), 0, remove=True))
        while (Path(half.uri) / DUPLICATES_KEY).exists():
            removal.step()
        late_planner.step(accesses)
        removal.kill()
        late_planner.kill()
        finished_run(tmp_path, "half", PROMPTS[:2])
    assert verify(half.uri).ok == 2


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


def test_run_in_use_stays_where_this_machines_clock_is_far_ahead_of_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = finished_run(tmp_path, "half", days=1, done=False)
    before = without_turns(Path(half.uri))
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 10 * DAY)
    result = gc(str(tmp_path / "out"), remove=True)
    assert (result.found, result.recent_runs) == ((), 1)
    assert without_turns(Path(half.uri)) == before
    assert reasons(gc(str(tmp_path / "out"), 0.5, remove=True).found) == {"half": "unfinished"}
    assert not Path(half.uri).exists()


def test_what_a_killed_removal_compared_clocks_by_is_left_by_no_later_one(tmp_path: Path) -> None:
    finished_run(tmp_path, "good")
    output = tmp_path / "out"
    before = files(output)
    with interleaving(tmp_path, lambda *_: None):
        frozen(partial(gc, str(output), remove=True), "remove", "gc_clock").kill()
    assert files(output) != before
    gc(str(output), remove=True)
    assert files(output) == before


def test_what_a_store_tells_no_age_of_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_run(tmp_path, "half", done=False)
    run = Path(finished_run(tmp_path, "good").uri)
    (run / "images" / ".writing-old_____").write_bytes(b"1")
    aged(run, 10)
    before = files(tmp_path / "out")
    list_folder = LocalStore.list_folder

    def without_times(store: LocalStore, folder: str) -> Iterator[ObjectInfo]:
        return (replace(entry, modified=None) for entry in list_folder(store, folder))

    monkeypatch.setattr(LocalStore, "list_folder", without_times)
    assert gc(str(tmp_path / "out"), remove=True).found == ()
    assert files(tmp_path / "out") == before


def test_run_that_is_finished_and_suspended_in_the_meantime_stays(tmp_path: Path) -> None:
    half = finished_run(tmp_path, "half", done=False, format="files")
    (garbage,) = gc(str(tmp_path / "out")).found
    aggregate(half.uri)
    ids = ForgetSelection(ids=("row-3",))
    with interleaving(tmp_path, lambda *_: None):
        removal = partial(forget, half.uri, ids, remove=True)
        frozen(removal, "replace_after", "0000-00003.json").kill()
    run = open_run(half.uri)
    assert not run.is_finished
    aged(Path(half.uri), 10)
    before = without_turns(Path(half.uri))
    assert not remove_garbage(run, garbage, cutoff=time.time())
    assert without_turns(Path(half.uri)) == before


def test_what_is_being_written_in_a_finished_run_stays_where_this_machines_clock_is_far_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(finished_run(tmp_path, "good").uri)
    (run / "images" / ".writing-new_____").write_bytes(b"1")
    before = files(tmp_path / "out")
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 10 * DAY)
    assert gc(str(tmp_path / "out"), remove=True).found == ()
    assert files(tmp_path / "out") == before


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


def test_a_plan_that_names_a_folder_elsewhere_is_skipped(tmp_path: Path) -> None:
    planned_run = finished_run(tmp_path, "half", done=False)
    store = open_store(planned_run.uri)
    store.replace(PLAN_KEY, plan_to_json(replace(load_plan(store), run_id="../..")))
    aged(Path(planned_run.uri), 10)
    with pytest.raises(BadInput, match="holds no runs"):
        gc(str(tmp_path / "out"), remove=True)
    assert store.exists(PLAN_KEY)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("image_format", ["parquet", "webdataset", "files"])
def test_all_that_a_run_writes_is_known_by_its_key(tmp_path: Path, image_format: str) -> None:
    run = planned(
        tmp_path,
        str(tmp_path / "out"),
        PROMPTS[:6],
        run_id="run",
        format=image_format,
        limits={"failed_share": 1},
    )
    fill(run, {1: not_ok(0)})
    aggregate(run.uri, price=1)
    retry_round = begin_round(run)
    fill(PlanResult(retry_round.plan, retry_round.store.uri, adopted=False))
    aggregate(run.uri)
    judge_first_shard(run.uri)
    (Path(run.uri) / "images" / ".writing-a1b2c3d4").touch()
    unknown = [name for name in files(Path(run.uri)) if not RUN_KEY_PATTERN.fullmatch(name)]
    assert unknown == []


FOREIGN = (
    "thesis/chapter-1.tex",
    "notes.txt",
    "images/my-own.png",
    "images/00000/cat.png",
    "retry-1/plan.json.orig",
    "report/images/cat.png",
)


def test_what_somebody_else_put_into_a_run_stays_with_its_folders(tmp_path: Path) -> None:
    run = Path(finished_run(tmp_path, "half", done=False).uri)
    for name in FOREIGN:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("precious", encoding="utf-8")
    aged(run, days=10)
    assert gc(str(tmp_path / "out"), remove=True).found
    assert sorted(files(run)) == sorted(FOREIGN)


def test_parts_behind_a_link_are_those_of_somebody_else(tmp_path: Path) -> None:
    other = Path(finished_run(tmp_path, "other").uri)
    short = finished_run(tmp_path, "short", PROMPTS[:4])
    shutil.rmtree(Path(short.uri) / "images")
    (Path(short.uri) / "images").symlink_to(other / "images")
    before = files(other)
    gc(str(tmp_path / "out"), 0, remove=True)
    assert files(other) == before
