"""Runs whose images are drawn first, and passes run over them later: the result is the same."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Incomplete, NotDrawn, StorageRefused, TryAgain
from imagekiln.steps.generate.draw_stage import draw_shard
from imagekiln.steps.generate.lazy_denoiser import LoadedPasses
from imagekiln.steps.generate.pass_stage import pass_shard
from imagekiln.steps.generate.start import generate
from imagekiln.steps.generate.worker_pool import make_shards
from imagekiln.steps.job.job import Job
from imagekiln.steps.local import run
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.retry import retry
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.forgotten import add_forgotten
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, DrawnImage, ImageRow, PassedImages
from imagekiln.steps.runs.plan import load_plan, plan_to_json
from imagekiln.steps.runs.stats import load_stats
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from tests import nights
from tests.faults import failing
from tests.image_models import captioner_folder, upscaler_folder
from tests.interleaving import Process, interleaving
from tests.models import SIDE
from tests.runs import PROMPTS, job, write_prompts

BIG: dict[str, object] = {"kind": "upscale", "id": str(upscaler_folder())}
DETAIL: dict[str, object] = {"kind": "refine", "strength": 0.5, "scale": 1.5}
WORDS: dict[str, object] = {"kind": "caption", "id": str(captioner_folder()), "max_tokens": 8}
SEEDS = {"seeds": {"kind": "own", "entry": "tests.scorers:SeedScore"}}
BEST = {"scores": SEEDS, "keep": {"of": 2, "by": "seeds", "losers": "drop"}}


def job_with(scratch: Path, **changes: object) -> Job:
    """A job of six prompts."""
    prompts = write_prompts(scratch / "prompts.parquet", PROMPTS[:6])
    return job(prompts, str(scratch / "out"), **changes)


def content_of(uri: str) -> dict[str, bytes]:
    """Every part, and what belongs to it."""
    folder = Path(uri)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("images", "index", "manifest")
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and not path.name.startswith(".writing")
    }


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"passes": {"big": BIG, "detail": DETAIL, "words": WORDS}},
        {"passes": {"big": BIG}, "format": "webdataset", "encoding": {"kind": "jpeg"}},
        {"passes": {"words": WORDS}, **BEST},
        {"passes": {"detail": DETAIL}, **BEST, "format": "files"},
    ],
    ids=["all", "upscale", "caption", "refine"],
)
def test_separate_passes_give_the_same_bytes(
    tmp_path: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    at_once = run(job_with(tmp_path / "a", run_id="run", **settings), NoProgress(), Stop())
    apart = job_with(tmp_path / "b", run_id="run", separate_passes=True, **settings)
    separate = run(apart, NoProgress(), Stop())
    assert separate.summary.ok == at_once.summary.ok > 0
    assert content_of(separate.uri) == content_of(at_once.uri)
    assert not list((Path(separate.uri) / "drawn").glob("*"))
    assert verify(separate.uri).images == verify(at_once.uri).images

    stats = [load_stats(open_store(result.uri), 0) for result in (at_once, separate)]
    first, second = stats
    assert first is not None
    assert second is not None
    assert (second.images, second.parts, second.attempts) == (first.images, first.parts, 1)
    assert [*second.seconds.passes] == [*first.seconds.passes]
    assert second.seconds.denoise > 0

    if "words" in settings["passes"] and "keep" not in settings:  # type: ignore[operator]  # a dict
        image_id = str(
            read_table(open_store(separate.uri), "manifest/00000.parquet")["image_id"][1]
        )
        assert reproduce(separate.uri, image_id, tmp_path / "again.png").equal == "bytes"


@pytest.mark.slow
def test_several_processes_take_turns_as_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    settings = {"passes": {"words": WORDS}, "part": {"images": 2}, "device": "cpu"}
    runs = [
        run(
            job_with(tmp_path / name, run_id="run", separate_passes=True, **settings),
            NoProgress(),
            Stop(),
            gpus=gpus,
        )
        for name, gpus in (("one", 1), ("two", 2))
    ]
    one, two = (content_of(result.uri) for result in runs)
    assert one == two
    assert drawn_keys(Path(runs[1].uri)) == []


@pytest.mark.slow
def test_a_retry_makes_images_in_two_stages_too(tmp_path: Path) -> None:
    settings = {"passes": {"words": WORDS}, "separate_passes": True, "limits": {"failed_share": 1}}
    retried = job_with(tmp_path, **settings)
    with failing(str(PROMPTS[1]["prompt"])):
        first = run(retried, NoProgress(), Stop())
    assert first.summary.ok == 5
    assert retry(first.uri).summary.ok == 6
    assert list(Path(first.uri).rglob("drawn/*")) == []
    assert verify(first.uri).images == 6


# --- Kills and damage, with pictures that are no model's ------------------------------------------


@pytest.fixture(scope="module")
def drawn_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose images are all drawn, and have no passes yet."""
    folder = tmp_path_factory.mktemp("drawn")
    job = nights.Setting(1, "parquet", 1.0, skip_existing=False, passes="separate")
    run = make_plan(job.job(folder, 0))
    for number in range(len(run.plan.shards)):
        nights.work_stage(run.uri, number, draws=True)
    return Path(run.uri)


def copied(run: Path, folder: Path) -> Path:
    """A copy of a run, by the name that its plan has."""
    return Path(shutil.copytree(run, folder / run.name))


def pass_all(run: Path) -> None:
    """Run the passes of all shards."""
    for number in range(len(load_plan(open_store(str(run))).shards)):
        nights.work_stage(str(run), number, draws=False)


def draw_all(run: Path) -> None:
    """Draw all shards."""
    for number in range(len(load_plan(open_store(str(run))).shards)):
        nights.work_stage(str(run), number, draws=True)


def drawn_keys(run: Path) -> list[str]:
    """The names of what waits for its passes."""
    return sorted(path.name for path in (run / "drawn").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("torn", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_stage_killed_before_any_access_is_made_up_for(
    tmp_path: Path, drawn_run: Path, torn: bool
) -> None:
    whole = copied(drawn_run, tmp_path / "whole")
    pass_all(whole)
    expected = content_of(str(whole))
    assert drawn_keys(whole) == []
    assert len(drawn_keys(drawn_run)) == len(expected) > 3

    for stage, begin in ((draw_all, remove_drawn), (pass_all, lambda _: None)):
        accesses = 0
        while True:
            run = copied(drawn_run, tmp_path / f"{stage.__name__}-{torn}-{accesses}")
            begin(run)
            with interleaving(run, lambda *_: None):
                # By another number than 0, a winner's pass would fail at times.
                process = Process("killed", partial(stage, run), number=0)
                process.step(accesses)
                was_done = process.is_done
                process.kill(torn=torn)
            draw_all(run)
            pass_all(run)
            assert content_of(str(run)) == expected
            assert [name for name in drawn_keys(run) if not name.startswith(".writing")] == []
            if was_done:
                break
            accesses += 1
        assert accesses > 10


def remove_drawn(run: Path) -> None:
    """Have everything drawn again."""
    for path in (run / "drawn").glob("*"):
        path.unlink()


def test_whoever_wakes_up_late_changes_nothing(tmp_path: Path, drawn_run: Path) -> None:
    again = copied(drawn_run, tmp_path / "again")
    pass_all(again)
    expected = content_of(str(again))
    operations = {"draw": ("create", "drawn"), "pass": ("create", "images")}
    for name, (operation, folder) in operations.items():
        run = copied(drawn_run, tmp_path / name)
        if name == "draw":
            remove_drawn(run)
        with interleaving(run, lambda *_: None):
            stage = draw_all if name == "draw" else pass_all
            process = Process("late", partial(stage, run))
            while process.next_access[0] != operation or folder not in process.next_access[1]:
                process.step()
            draw_all(run)
            pass_all(run)
            process.finish()
            assert process.error is None
        assert content_of(str(run)) == expected
        assert drawn_keys(run) == []


def test_what_is_not_drawn_is_said_and_can_be_tried_again(tmp_path: Path, drawn_run: Path) -> None:
    run = copied(drawn_run, tmp_path)
    (run / "drawn" / "00000-0001.parquet").unlink()
    with pytest.raises(TryAgain, match=r"nothing is drawn yet of 1 part of shard 0.* --stage draw"):
        nights.work_stage(str(run), 0, draws=False)
    assert len(content_of(str(run))) == 2, "the others were made"
    with pytest.raises(NotDrawn):  # where none of what is missing is drawn
        nights.work_stage(str(run), 0, draws=False)
    draw_all(run)
    pass_all(run)
    assert drawn_keys(run) == []


@pytest.mark.parametrize("draws", [True, False], ids=["draw", "pass"])
def test_a_stage_that_is_asked_to_stop_ends_after_its_part_and_can_be_tried_again(
    tmp_path: Path, drawn_run: Path, draws: bool
) -> None:
    run = copied(drawn_run, tmp_path)
    if draws:
        remove_drawn(run)
    plan = load_plan(open_store(str(run)))
    stop = Stop()
    painter = nights.painter_of(plan)

    class Stopping(nights.Negatives):
        def __call__(
            self,
            images: Sequence[DrawnImage],
            rows: Sequence[ImageRow],
            check: Callable[[], None],
        ) -> PassedImages:
            stop.request()
            return super().__call__(images, rows, check)

    class StoppingPainter(type(painter)):  # type: ignore[misc]  # a class of the test's
        def draw(
            self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]
        ) -> Sequence[DrawnImage]:
            stop.request()
            drawn: Sequence[DrawnImage] = super().draw(rows, size, check)
            return drawn

    def work(model: object) -> object:
        place = (open_store(str(run)), plan, 0, lambda: model, NoProgress(), stop)
        return draw_shard(*place) if draws else pass_shard(*place)  # type: ignore[arg-type]

    stage = StoppingPainter(is_retry=False) if draws else LoadedPasses(painter.device, Stopping())
    for model in (stage, None):  # asked before it begins, it loads no model
        with pytest.raises(TryAgain, match="shard 0 was stopped with 2 parts left"):
            work(model)
    draw_all(run)
    pass_all(run)
    assert work(None) is None
    assert len(content_of(str(run))) == len(drawn_keys(drawn_run))


def test_pixels_of_an_image_that_was_taken_down_are_not_kept_for_its_passes(
    tmp_path: Path, drawn_run: Path
) -> None:
    run = copied(drawn_run, tmp_path)
    path = run / "drawn" / "00000-0000.parquet"
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    (image_id,) = pq.read_table(path)["image_id"].to_pylist()
    remove_drawn(run)
    add_forgotten(open_store(str(run)), pa.array([image_id]))
    draw_all(run)
    (row,) = pq.read_table(path).to_pylist()
    assert (row["image_id"], row["status"], row["pixels"]) == (image_id, FORGOTTEN_STATUS, None)
    after = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    assert after.pop(path.name) != before.pop(path.name)
    assert after == before


@pytest.mark.slow
def test_a_shard_that_is_not_drawn_keeps_no_other_from_its_passes(tmp_path: Path) -> None:
    settings = {"shard": {"images": 2}, "part": {"images": 2}, "device": "cpu"}
    captioned = job_with(tmp_path, passes={"words": WORDS}, separate_passes=True, **settings)
    plan = make_plan(captioned)
    shards = range(len(plan.plan.shards))
    for number in shards[1:]:
        generate(plan.uri, number, stage="draw")
    store = open_store(plan.uri)
    with pytest.raises(NotDrawn, match=r"nothing is drawn yet of \d parts? of shard 0"):
        make_shards(store, plan.plan, shards, [{}], NoProgress(), Stop(), ["passes"])
    made = {entry.key[:12] for entry in store.list_folder("images")}
    assert made == {f"images/{number:05}" for number in shards[1:]}


def test_a_store_that_forbids_removal_stops_no_pass(
    tmp_path: Path, drawn_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalStore, key: str) -> None:
        raise StorageRefused(f"{key}: may not be removed.")

    run = copied(drawn_run, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "remove", refuse)
        pass_all(run)
        pass_all(run)
    assert len(drawn_keys(run)) == len(drawn_keys(drawn_run))
    with suppress(Incomplete):
        aggregate(str(run), failed_share=1.0)
    gc(str(tmp_path), 0, remove=True)
    assert drawn_keys(run) == []


def test_a_disk_needs_room_for_what_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagekiln.steps.plan.space.find_free_bytes", lambda _: SIDE**2)
    settings = {"passes": {"words": WORDS}, "encoding": {"kind": "webp"}}
    make_plan(job_with(tmp_path / "at-once", **settings))
    with pytest.raises(BadInput, match=r"the images take about .* free"):
        make_plan(job_with(tmp_path / "apart", separate_passes=True, **settings))


def table_changed(path: Path, **columns: object) -> None:
    """Replace values of the first row, and leave hash and version as they were."""
    table = pq.read_table(path)
    metadata = pq.read_metadata(path).metadata or {}
    rows = table.to_pylist()
    rows[0] |= columns
    schema = table.schema.with_metadata(metadata)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 50),
    "swapped": lambda path: shutil.copy(path.with_name("00000-0001.parquet"), path),
    "too large": lambda path: path.write_bytes(path.read_bytes() + bytes(4 * 2**20)),
    "other pixels": lambda path: table_changed(path, pixels=bytes(64 * 64 * 3)),
    "small": lambda path: table_changed(path, pixels=b"123"),
    "no pixels": lambda path: table_changed(path, pixels=None),
    "status": lambda path: table_changed(path, status="fine"),
    "pixels of none": lambda path: table_changed(path, status="failed"),
    "rank": lambda path: table_changed(path, candidate_rank=-1),
    "score": lambda path: table_changed(path, scores=[{"name": "x", "value": 1.0}]),
    "error": lambda path: table_changed(path, error="no"),
    "other columns": lambda path: pq.write_table(pa.table({"a": [1]}), path),
    "no rows": lambda path: pq.write_table(pq.read_table(path).slice(0, 0), path),
}


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_said_and_gives_no_image(
    tmp_path: Path, drawn_run: Path, damage: str
) -> None:
    run = copied(drawn_run, tmp_path)
    path = run / "drawn" / "00000-0000.parquet"
    DAMAGES[damage](path)
    with pytest.raises(BadInput, match=r"drawn/00000-0000\.parquet: is damaged .*delete it"):
        pass_all(run)
    assert "images/00000-0000.parquet" not in content_of(str(run))
    path.unlink()
    draw_all(run)
    pass_all(run)


def test_what_a_newer_version_drew_is_not_misread(tmp_path: Path, drawn_run: Path) -> None:
    run = copied(drawn_run, tmp_path)
    path = run / "drawn" / "00000-0000.parquet"
    metadata = {**(pq.read_metadata(path).metadata or {}), b"imagekiln.drawn_version": b"2"}
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(BadInput, match=r"00000-0000\.parquet: was written by a newer Imagekiln"):
        pass_all(run)


def test_stages_are_refused_where_passes_are_not_separate(tmp_path: Path) -> None:
    plan = make_plan(job_with(tmp_path, passes={"detail": DETAIL}))
    with pytest.raises(BadInput, match=r"does not set separate_passes.*Leave out --stage draw"):
        generate(plan.uri, 0, stage="draw")
    with pytest.raises(BadInput, match="has separate_passes and no passes"):
        job_with(tmp_path, separate_passes=True)


def test_ids_do_not_depend_on_it(tmp_path: Path) -> None:
    ids = []
    for separate in (False, True):
        settings = {"passes": {"detail": DETAIL}, "separate_passes": separate}
        plan = make_plan(job_with(tmp_path / str(separate), **settings))
        ids.append(read_table(open_store(plan.uri), "shards/00000.parquet")["image_id"])
        assert ("separate_passes" in plan_to_json(plan.plan).decode()) == separate
    assert ids[0] == ids[1]


def test_garbage_of_drawn_images_is_removed_where_a_run_is_finished(
    tmp_path: Path, drawn_run: Path
) -> None:
    run = copied(drawn_run, tmp_path)
    (unfinished,) = gc(str(tmp_path), 0).found
    assert (unfinished.reason, unfinished.objects) == ("unfinished", len(list(files_of(run))))
    left = (run / "drawn" / "00000-0000.parquet").read_bytes()
    pass_all(run)
    with suppress(Incomplete):
        aggregate(str(run), failed_share=1.0)
    (run / "drawn" / "00000-0000.parquet").write_bytes(left)
    pass_all(run)  # as once a process was killed between commit and removal
    assert drawn_keys(run) == []
    (run / "drawn" / "00000-0000.parquet").write_bytes(left)
    found = gc(str(tmp_path), 0, remove=True).found
    assert [(garbage.reason, garbage.objects) for garbage in found] == [("leftovers", 1)]
    assert drawn_keys(run) == []


def files_of(run: Path) -> Iterator[Path]:
    """All objects of a run."""
    return (path for path in run.rglob("*") if path.is_file())


def test_pixels_of_forgotten_images_do_not_stay(tmp_path: Path, drawn_run: Path) -> None:
    run = copied(drawn_run, tmp_path)
    path = run / "drawn" / "00000-0000.parquet"
    left = path.read_bytes()
    pass_all(run)
    aggregate(str(run), failed_share=1.0)
    for _ in range(2):  # when it is forgotten, and when a process that wakes up left it again
        path.write_bytes(left)
        forget(str(run), ForgetSelection(ids=("row-0",)), remove=True)
        assert drawn_keys(run) == []
    assert verify(str(run)).images == len(nights.PROMPTS[:5])


def test_estimates_name_the_space_of_pixels_that_wait(tmp_path: Path) -> None:
    passes = {"passes": {"detail": DETAIL}}
    plain, waiting, chosen = (
        estimate(job_with(tmp_path, **passes, **settings)).drawn_gigabytes
        for settings in ({}, {"separate_passes": True}, {"separate_passes": True, **BEST})
    )
    assert plain is None
    assert waiting == chosen == pytest.approx(6 * SIDE * SIDE * 3 / 1e9)  # winners alone wait
