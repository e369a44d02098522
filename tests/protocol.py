"""A model of the commit protocol: any interleaving of a run's processes ends in the same dataset.

The processes run the real code on a local disk; only the pictures are no model's. They plan, make
shards and help with others, aggregate, retry, take images down and collect garbage, each any number
of times at once.
Any of them may be killed or fall asleep before any access to the store, and wake up at the very
end. `python -m tests.protocol --examples 1000 --seed 7` looks for a history that breaks a promise.
"""

import argparse
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from imagekiln.steps.aggregate import output_card as output_card_module
from imagekiln.steps.aggregate import step as aggregate_step
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.errors import BadInput, Incomplete, KilnError
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.draw_stage import draw_shard
from imagekiln.steps.generate.encoder import mark_flat
from imagekiln.steps.generate.lazy_denoiser import LoadedPasses
from imagekiln.steps.generate.pass_stage import pass_shard
from imagekiln.steps.generate.step import generate_and_help, generate_shard
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain import gc as gc_module
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.forgotten import read_forgotten
from imagekiln.steps.runs.image import DrawnImage, ImageRow, PassedImages, ScoreValue
from imagekiln.steps.runs.image_id_index import ids_from_hex, iter_index_chunks
from imagekiln.steps.runs.keys import (
    DRAWN_FOLDER,
    PLAN_KEY,
    REPORT_KEY,
    SUCCESS_KEY,
    TURNS_FOLDER,
    manifest_key,
)
from imagekiln.steps.runs.parts import read_outcomes
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.readback import read_image_bytes
from imagekiln.steps.runs.rounds import Round, Run, iter_rounds, open_run
from imagekiln.steps.runs.shard import read_shard, read_shard_rows
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import jobs, models
from tests.interleaving import Process, interleaving, process_number

SIDE = 64
PROMPTS = (
    "a circle",
    "a square that fails at first",
    "a star",
    "a flat sky, at first",
    "a triangle that fails at times",
    "a cross that always fails",
    "a ring",
    "a line",
    "a moon that fails at times",
)
ROWS_OF_NIGHTS = (5, 9)  # how many of the prompts each night's table has
DEFAULTS: dict[str, object] = {"steps": 1, "width": SIDE, "height": SIDE, "seed": 7}
SEPARATE: dict[str, object] = {
    "passes": {"over": {"kind": "refine", "strength": 1.0}},
    "separate_passes": True,
}
CANDIDATES = 2
MAX_ROUNDS = 6
MAX_PROCESSES = 6
Losers = Literal["drop", "keep"]
# What an image is in the end: its status, and the hashes of its file and its pixels.
Outcome = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a history is about: how many nights, and their jobs."""

    nights: int
    format: str
    failed_share: float
    skip_existing: bool
    separate_passes: bool = False
    part_images: int = 1
    shard_images: int = 3
    images: int = 1
    """Of each prompt."""
    losers: Losers | None = None
    """What becomes of images that do not win; None where none compete."""

    def job(self, folder: Path, night: int) -> Job:
        """The job of a night, whose runs lie in `folder`/out."""
        prompts = PROMPTS[: ROWS_OF_NIGHTS[night]]
        table = folder / f"{night}.parquet"
        if not table.exists():
            jobs.write(table, {"prompt": prompts, "id": [f"row-{n}" for n in range(len(prompts))]})
        return jobs.job(
            folder,
            prompts=str(table),
            name="nightly",
            run_id=f"night-{night}",
            format=self.format,
            defaults={**DEFAULTS, **({} if self.losers else {"images_per_prompt": self.images})},
            limits={"failed_share": self.failed_share},
            skip_existing=self.skip_existing,
            **(SEPARATE if self.separate_passes else {}),
            **self._best(),
            batch={"images": 1},
            part={"images": self.part_images},
            shard={"images": self.shard_images},
            device="cpu",
            threads=1,
        )

    def _best(self) -> dict[str, object]:
        if self.losers is None:
            return {}
        return {
            "scores": {"taste": {"kind": "own", "entry": "tests.scorers:SeedScore"}},
            "keep": {"of": self.images, "by": "taste", "losers": self.losers},
        }


class Painter(Denoiser):
    """Draws pictures that follow from an image's id; some prompts fail, or come out flat.

    Some fail in one process and not in the next, and each process has a taste of its own.
    """

    def __init__(self, is_retry: bool) -> None:
        """Take what drawing needs, but no prompt is given to the model."""
        super().__init__(models.pipe("shapes"))
        self._is_retry = is_retry

    def draw(
        self,
        rows: Sequence[ImageRow],
        size: int,  # noqa: ARG002  # as of every denoiser
        check: Callable[[], None],
    ) -> Sequence[DrawnImage]:
        check()
        return [self._draw(row) for row in rows]

    def _failing_share(self, prompt: str) -> float:
        if "at times" in prompt:
            return 0.5
        return 0.3 if self.scorers else 0.0  # what loses is not drawn again

    def _draw(self, row: ImageRow) -> DrawnImage:
        prompt = row.parameters.prompt
        if "always" in prompt:
            error = ValueError if "always fails" in prompt else RuntimeError
            raise error(f"cannot draw {prompt!r}")
        if "fails at first" in prompt and not self._is_retry:
            raise RuntimeError(f"cannot draw {prompt!r}")
        if process_number() and mood(row) < self._failing_share(prompt):
            raise RuntimeError(f"cannot draw {prompt!r} this time")
        dice = np.random.default_rng(int(row.image_id, 16))
        rgb = np.full((SIDE, SIDE, 3), dice.integers(0, 256, 3), np.uint8)
        if "at first" not in prompt or self._is_retry:
            rgb[0] = dice.integers(0, 256, (SIDE, 3), np.uint8)
        return DrawnImage(row.index_in_part, rgb)


def taste(_: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
    """The scores that this process gives to images."""
    return [ScoreValue(mood(row)) for row in rows]


def mood(row: ImageRow) -> float:
    """A number from 0 to 1 that depends on the image and on the process."""
    dice = np.random.default_rng([process_number(), int(row.image_id, 16)])
    return float(dice.random())


@cache
def painter(is_retry: bool, has_taste: bool) -> Painter:
    """The one for the run itself or for its rounds, with scores or without."""
    the_painter = Painter(is_retry)
    if has_taste:
        the_painter.scorers = {"taste": taste}
    return the_painter


def painter_of(plan: Plan) -> Painter:
    """The one of a plan."""
    return painter(plan.round > 0, plan.job.keep is not None)


class Negatives:
    """Stands for passes: negatives of the images that are ok and not flat."""

    def __call__(
        self,
        images: Sequence[DrawnImage],
        rows: Sequence[ImageRow],  # noqa: ARG002  # as of every pass
        check: Callable[[], None],
    ) -> PassedImages:
        check()
        marked = map(mark_flat, images)
        passed = [
            image if image.rgb is None else replace(image, rgb=255 - image.rgb) for image in marked
        ]
        return PassedImages(passed, {"over": 1.0})

    def close(self) -> None:
        """End nothing."""


# --- What processes do ----------------------------------------------------------------------------


def work(uri: str, shard: int) -> None:
    """Make a shard of a run, then help with others."""
    store = open_store(uri)
    plan = load_plan(store)
    if not plan.shards:  # earlier nights have all images
        return
    number = shard % len(plan.shards)
    if plan.job.separate_passes:
        make_separately(store, plan, number)
    else:
        generate_and_help(store, plan, number, partial(painter_of, plan), NoProgress(), Stop())


def work_stage(uri: str, shard: int, draws: bool) -> None:
    """Do one of the two stages of a shard."""
    store = open_store(uri)
    plan = load_plan(store)
    if not plan.shards:
        return
    number = shard % len(plan.shards)
    (draw if draws else pass_over)(store, plan, number)


def make_separately(store: Store, plan: Plan, number: int) -> None:
    """Draw a shard, then run the passes over it."""
    draw(store, plan, number)
    pass_over(store, plan, number)


def pass_over(store: Store, plan: Plan, number: int) -> None:
    """Run the passes over a shard that is drawn."""
    passes = LoadedPasses(painter_of(plan).device, Negatives())
    pass_shard(store, plan, number, lambda: passes, NoProgress(), Stop())


def draw(store: Store, plan: Plan, number: int) -> None:
    """Draw a shard, whose passes are to come."""
    draw_shard(store, plan, number, partial(painter_of, plan), NoProgress(), Stop())


def retry(uri: str, include_permanent: bool) -> None:
    """Make a round of a run, or what is left of it."""
    run = open_run(uri)
    retry_round = plan_next_round(run.store, run.plan, include_permanent=include_permanent)
    if retry_round is None:
        aggregate(uri)
        return
    make_round(retry_round)
    aggregate(retry_round.store.uri)


def make_round(retry_round: Round) -> None:
    """Make what is missing of a round."""
    store = retry_round.store
    for number in range(len(retry_round.plan.shards)):
        plan = retry_round.plan
        if plan.job.separate_passes:
            make_separately(store, plan, number)
        else:
            generate_shard(store, plan, number, partial(painter_of, plan), NoProgress(), Stop())


def finish_night(job: Job) -> Plan:
    """Do all that a night needs, with nothing in the way."""
    run = make_plan(job)
    store = open_store(run.uri)
    for shard in range(len(run.plan.shards)):
        work(run.uri, shard)
    for _ in range(MAX_ROUNDS):
        with suppress(Incomplete):
            aggregate(run.uri)
        retry_round = plan_next_round(store, run.plan)
        if retry_round is None:
            break
        make_round(retry_round)
    aggregate(run.uri)
    return run.plan


# --- What must hold -------------------------------------------------------------------------------


def manifest_of(store: Store, plan: Plan) -> pa.Table:
    """The rows of all shards."""
    tables = [read_table(store, manifest_key(number)) for number in range(len(plan.shards))]
    return pa.concat_tables(tables)


def outcomes(store: Store, plan: Plan) -> dict[str, Outcome]:
    """What each image of a run is by its manifest."""
    if not plan.shards:
        return {}
    rows = manifest_of(store, plan).to_pylist()
    return {row["image_id"]: (row["status"], row["sha256"], row["pixels_sha256"]) for row in rows}


def check_whole(store: Store) -> None:
    """Fail unless a run that claims to be finished has every planned image, as it says."""
    plan = load_plan(store)
    summary = load_summary(store)
    forgotten = set(read_forgotten(store, plan).to_pylist())
    ok_ids: list[str] = []
    listed_ids: list[str] = []  # that no later run is to make
    for number in range(len(plan.shards)):
        manifest = read_table(store, manifest_key(number))
        planned = read_shard_rows(store, plan, number)
        assert manifest["image_id"].equals(planned["image_id"])
        for row in manifest.to_pylist():
            may_be_gone = row["image_id"] in forgotten
            assert row["status"] in ("ok", "outscored", "failed", "blank") or may_be_gone, row
            if row["status"] == "ok":
                read_image_bytes(store, row)
                ok_ids.append(row["image_id"])
            if row["status"] in ("ok", "forgotten"):
                listed_ids.append(row["image_id"])
        if plan.job.keep is not None:
            check_winners(manifest.to_pylist(), plan.job.keep.of)
    assert (summary.images, summary.ok) == (plan.counts.images, len(ok_ids))
    assert summary.not_ok <= summary.failed_share * summary.images
    assert store.read(SUCCESS_KEY) == f"{summary.ok} of {summary.images} images\n".encode()
    index = [image_id for chunk in iter_index_chunks(store) for image_id in chunk.tolist()]
    listed = pa.array(listed_ids, pa.string())
    expected = sorted(ids_from_hex(listed).tolist()) if listed_ids else []
    assert index == expected


def check_winners(rows: Sequence[Mapping[str, object]], candidates: int) -> None:
    """Fail unless each group of candidates has one winner, or none where all failed."""
    for start in range(0, len(rows), candidates):
        group = rows[start : start + candidates]
        winners = [row for row in group if row["status"] == "ok" and row["candidate_rank"] == 1]
        statuses = {row["status"] for row in group}
        assert len(winners) <= 1, group
        assert winners or "forgotten" in statuses or statuses <= {"failed", "blank"}, group


@cache
def undisturbed(setting: Setting) -> tuple[Mapping[str, Outcome], ...]:
    """What the images of each night are where nothing is in the way, by a table of its own.

    Where images compete, what all of them would be.
    """
    folder = models.scratch("undisturbed")
    alone = replace(setting, skip_existing=False, losers=None)
    results = []
    for night in range(setting.nights):
        job = alone.job(folder, night)
        plan = finish_night(job)
        results.append(outcomes(open_store(f"{job.output}/{plan.run_id}"), plan))
    return tuple(results)


def settings_of_histories() -> st.SearchStrategy[Setting]:
    """All kinds of nights, in which each prompt has one image, or candidates compete."""
    nights: dict[str, st.SearchStrategy[object]] = {
        "nights": st.integers(1, 2),
        "format": st.sampled_from(("parquet", "webdataset", "files")),
        "failed_share": st.sampled_from((0.3, 1.0)),
        "skip_existing": st.booleans(),
        "separate_passes": st.booleans(),
        "part_images": st.sampled_from((1, 3)),
    }
    losers = st.sampled_from(("drop", "keep"))
    return st.one_of(
        st.builds(Setting, **nights),
        st.builds(Setting, **nights, images=st.just(CANDIDATES), losers=losers),
    )


class Protocol(RuleBasedStateMachine):
    """Histories of the runs under one output; `histories` counts them all."""

    histories = 0

    def __init__(self) -> None:
        """Begin with nothing planned."""
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="imagekiln-protocol-"))
        self.output = self.folder / "out"
        self.processes: list[Process] = []
        self.started = 0
        self.forgets: dict[tuple[str, str], Callable[[], object]] = {}
        self.is_collected = False
        self.is_changed = False
        self.takes_down = False
        self.inputs_at_turn: dict[int, frozenset[str]] = {}
        self.inputs_at_success: dict[str, frozenset[str]] = {}
        self.broken: str | None = None
        self._interleaving = interleaving(self.output, self._note)
        self._interleaving.__enter__()

    @initialize(setting=settings_of_histories())
    def begin(self, setting: Setting) -> None:
        self.setting = setting
        self.expected = undisturbed(self.setting)

    # --- Processes

    @precondition(lambda self: len(self.processes) < MAX_PROCESSES)
    @rule(night=st.integers(0, 1))
    def plan(self, night: int) -> None:
        night %= self.setting.nights
        self._start(f"plan {night}", partial(make_plan, self.setting.job(self.folder, night)))

    @precondition(lambda self: len(self.processes) < MAX_PROCESSES and self.runs())
    @rule(run=st.integers(0, 1), shard=st.integers(0, 2))
    def work(self, run: int, shard: int) -> None:
        self._start(f"work {shard}", partial(work, self._run(run), shard))

    @precondition(
        lambda self: (
            len(self.processes) < MAX_PROCESSES and self.runs() and self.setting.separate_passes
        )
    )
    @rule(run=st.integers(0, 1), shard=st.integers(0, 2), draws=st.booleans())
    def work_stage(self, run: int, shard: int, draws: bool) -> None:
        name = f"{'draw' if draws else 'passes'} {shard}"
        self._start(name, partial(work_stage, self._run(run), shard, draws))

    @precondition(lambda self: len(self.processes) < MAX_PROCESSES and self.runs())
    @rule(run=st.integers(0, 1), include_permanent=st.booleans())
    def retry(self, run: int, include_permanent: bool) -> None:
        self._start("retry", partial(retry, self._run(run), include_permanent))

    @precondition(lambda self: len(self.processes) < MAX_PROCESSES and self.runs())
    @rule(run=st.integers(0, 1))
    def aggregate(self, run: int) -> None:
        self._start("aggregate", partial(aggregate, self._run(run)))

    @precondition(lambda self: len(self.processes) < MAX_PROCESSES and self.finished_runs())
    @rule(run=st.integers(0, 1), row=st.integers(0, len(PROMPTS) - 1))
    def forget(self, run: int, row: int) -> None:
        finished = self.finished_runs()
        uri = finished[run % len(finished)].uri
        row_id = f"row-{row}"
        take_down = partial(forget, uri, ForgetSelection(ids=(row_id,)), remove=True)
        self.forgets[uri, row_id] = take_down
        self._start("forget", take_down)

    @precondition(lambda self: not self.processes and self.runs())
    @rule()
    def collect_garbage(self) -> None:
        self.is_collected = True
        self._start("gc", partial(gc, str(self.output), 0, remove=True))

    # --- Time

    @precondition(lambda self: self.processes)
    @rule(process=st.integers(0, MAX_PROCESSES - 1), accesses=st.integers(1, 60))
    def step(self, process: int, accesses: int) -> None:
        self._process(process).step(accesses)
        self._bury()

    @precondition(lambda self: self.processes)
    @rule(process=st.integers(0, MAX_PROCESSES - 1))
    def finish(self, process: int) -> None:
        self._process(process).finish()
        self._bury()

    @precondition(lambda self: self.processes)
    @rule(process=st.integers(0, MAX_PROCESSES - 1), torn=st.booleans())
    def kill(self, process: int, torn: bool) -> None:
        self._process(process).kill(torn)
        self._bury()

    # --- Promises

    @invariant()
    def what_claims_to_be_finished_is_whole(self) -> None:
        assert self.broken is None, self.broken
        if not self.is_changed:
            return
        self.is_changed = False
        for store in self.finished_runs():
            check_whole(store)

    def teardown(self) -> None:
        """Finish with nothing in the way; then wake whoever still sleeps."""
        try:
            if hasattr(self, "setting"):
                self._finish()
        finally:
            for process in self.processes:
                process.kill()
            self._interleaving.__exit__(None, None, None)
            shutil.rmtree(self.folder, ignore_errors=True)
            Protocol.histories += 1

    def _finish(self) -> None:
        nights = range(self.setting.nights)
        plans = [finish_night(self.setting.job(self.folder, night)) for night in nights]
        self.takes_down = True
        for take_down in self.forgets.values():
            take_down()
        self.takes_down = False
        results = self._check_nights(plans)
        for process in self.processes:
            process.finish()
            self._judge(process)
            if not self.is_collected:
                for store in self.finished_runs():
                    check_whole(store)
        assert self.broken is None, self.broken
        assert self._check_nights(plans) == results

    def _check_nights(self, plans: Sequence[Plan]) -> dict[str, dict[str, Outcome]]:
        """Fail unless all nights are as expected; returns what their images are, by run id."""
        results = {}
        gone: set[str] = set()
        for plan in plans:
            store = open_store(f"{self.output}/{plan.run_id}")
            check_whole(store)
            verify(store.uri)
            results[plan.run_id] = outcomes(store, plan)
            forgotten = read_forgotten(store, plan).to_pylist()
            assert all(results[plan.run_id][each][0] == "forgotten" for each in forgotten)
            gone.update(forgotten)
        for plan, expected in zip(plans, self.expected, strict=True):
            ok_before = {
                image_id: outcome
                for run_id in plan.existing_runs
                for image_id, outcome in results[run_id].items()
                if outcome[0] == "ok"
            }
            self._check_night(results[plan.run_id], ok_before, expected, gone)
        return results

    def _check_night(
        self,
        own: Mapping[str, Outcome],
        before: Mapping[str, Outcome],
        expected: Mapping[str, Outcome],
        gone: set[str],
    ) -> None:
        image_ids = [*expected]
        for start in range(0, len(image_ids), self.setting.images):
            ids = image_ids[start : start + self.setting.images]
            made = own if own.keys() & set(ids) else before
            is_gone = any(image_id in gone for image_id in ids)
            for image_id in ids:
                status, *_ = made.get(image_id, ("forgotten" if is_gone else "outscored",))
                is_other = status == "outscored" and self.setting.losers is not None
                is_other |= status == "forgotten" and image_id in gone
                assert is_other or made[image_id] == expected[image_id], image_id

    # --- Helpers

    def runs(self) -> list[str]:
        """The URIs of planned runs."""
        return sorted(str(path.parent) for path in self.output.glob(f"*/{PLAN_KEY}"))

    def finished_runs(self) -> list[Store]:
        """The runs that claim to be finished."""
        return [
            open_store(str(path.parent)) for path in sorted(self.output.glob(f"*/{SUCCESS_KEY}"))
        ]

    def _run(self, number: int) -> str:
        runs = self.runs()
        return runs[number % len(runs)]

    def _process(self, number: int) -> Process:
        return self.processes[number % len(self.processes)]

    def _start(self, name: str, work: Callable[[], object]) -> None:
        self.started += 1
        self.processes.append(Process(name, work, self.started))
        self._bury()

    def _bury(self) -> None:
        """Judge the processes that are done."""
        for process in self.processes:
            if process.is_done:
                self._judge(process)
        self.processes = [process for process in self.processes if not process.is_done]

    def _judge(self, process: Process) -> None:
        error = process.error
        if error is None:
            return
        if not isinstance(error, KilnError):
            raise AssertionError(f"{process.name} raised {error!r}") from error  # noqa: TRY004
        is_refused = process.name == "forget" and "is not finished" in str(error)
        if isinstance(error, BadInput) and not (self.is_collected or is_refused):
            raise AssertionError(f"{process.name} ended with: {error}") from error

    def _note(self, operation: str, name: str) -> None:
        self.is_changed = True
        run = self.output / Path(name).relative_to(self.output).parts[0]
        if f"/{TURNS_FOLDER}/" in name:
            self.inputs_at_turn[threading.get_ident()] = _parts_of(run)
        if name != f"{run}/{SUCCESS_KEY}":
            return
        if operation != "remove":
            self.inputs_at_success[name] = self.inputs_at_turn[threading.get_ident()]
        elif self.takes_down or threading.current_thread().name == "forget":
            # It finishes the run again.
            return
        elif self.inputs_at_success.get(name) == _parts_of(run) and not self.is_collected:
            self.broken = f"{name} was removed, and nothing was made since it was written"


def made_ids(run: Run) -> Iterator[str]:
    """The id of each image that is ok in a part of a run or its rounds, once for each part."""
    for planned in (Round(run.store, run.plan), *iter_rounds(run.store, run.plan)):
        for number in range(len(planned.plan.shards)):
            for part in read_shard(planned.store, planned.plan, number):
                if planned.store.exists(part.key):
                    columns = ["image_id", "status"]
                    outcomes = read_outcomes(planned.store, part.key, columns, part.added)
                    ok_rows = outcomes.table.filter(pc.equal(outcomes.table["status"], "ok"))
                    yield from ok_rows["image_id"].to_pylist()


def _parts_of(run: Path) -> frozenset[str]:
    """The parts that a run and its rounds have now, and what says which images are forgotten."""
    parts = [*run.glob("**/*-*.parquet"), *run.glob("forgotten/*.parquet")]
    return frozenset(str(path) for path in parts if path.parent.name != DRAWN_FOLDER)


def write_no_report(store: Store, *_: object, **__: object) -> None:
    """Leave a page without pictures: reports are no part of the protocol."""
    store.replace(REPORT_KEY, b"<html></html>\n")


@contextmanager
def without_reports() -> Iterator[pytest.MonkeyPatch]:
    """While the block runs, reports and cards of outputs, which are no part of it, are not made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregate_step, "write_report", write_no_report)
        patch.setattr(aggregate_step, "update_output_card", lambda _: None)
        patch.setattr(output_card_module, "update_output_card", lambda _: None)
        yield patch


def check_protocol(examples: int, seed: int, steps: int = 40, *, shrinks: bool = True) -> None:
    """Try so many histories, each of at most so many rules; shorten one that breaks a promise."""
    machine = seeded(seed)(Protocol)
    with without_reports() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1790000000")
        patch.setattr(gc_module, "REMOVE_BATCH", 1)
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )


def main() -> None:
    """Look for a history that breaks a promise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--as-it-is", action="store_true", help="do not shorten what is found")
    options = parser.parse_args()
    try:
        check_protocol(options.examples, options.seed, options.steps, shrinks=not options.as_it_is)
    finally:
        print(f"{Protocol.histories} histories")  # noqa: T201


if __name__ == "__main__":
    main()
