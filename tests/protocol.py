"""A model of the commit protocol: any interleaving of a run's processes ends in the same dataset.

The processes run the real code on a local disk; only the pictures are no model's. They plan, make
shards and help with others, aggregate, retry, take images down and collect garbage, each any number
of times at once. Any of them may be killed or fall asleep before any access to the store, and wake
up at the very end; and any access may fail, with or without effect.
`python -m tests.protocol --examples 1000 --seed 7` looks for a history that breaks a promise.
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
from random import Random
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from imagekiln.steps.aggregate import output_card as output_card_module
from imagekiln.steps.aggregate import step as aggregate_step
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.errors import BadInput, Incomplete, KilnError, StorageRefused, TryAgain
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
PASSES: dict[str, object] = {"over": {"kind": "refine", "strength": 1.0}}
CANDIDATES = 2
FAILING_PASSES = 0.3  # of all
MAX_ROUNDS = 6
MAX_PROCESSES = 6
TO_THE_END = 1000  # more writes than a process has
Losers = Literal["drop", "keep"]
Passes = Literal["none", "at once", "separate"]
# What an image is in the end: its status, and the hashes of its file and its pixels.
Outcome = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a history is about: how many nights, and their jobs."""

    nights: int
    format: str = "parquet"
    failed_share: float = 1.0
    skip_existing: bool = False
    passes: Passes = "none"
    part_images: int = 1
    shard_images: int = 3
    images: int = 1
    """Of each prompt."""
    losers: Losers | None = None
    """What becomes of images that do not win; None where none compete."""
    ends_in_rounds: bool = False
    """Whether what is missing in the end is left to rounds, while pods of the run still sleep."""

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
            passes={} if self.passes == "none" else PASSES,
            separate_passes=self.passes == "separate",
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
        if process_number() and mood(row, "draw") < self._failing_share(prompt):
            raise RuntimeError(f"cannot draw {prompt!r} this time")
        dice = np.random.default_rng(int(row.image_id, 16))
        rgb = np.full((SIDE, SIDE, 3), dice.integers(0, 256, 3), np.uint8)
        if "at first" not in prompt or self._is_retry:
            rgb[0] = dice.integers(0, 256, (SIDE, 3), np.uint8)
        return DrawnImage(row.index_in_part, rgb)


def taste(_: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
    """The scores that this process gives to images."""
    return [ScoreValue(mood(row, "taste")) for row in rows]


def mood(row: ImageRow, purpose: str) -> float:
    """A number from 0 to 1 that depends on the image, the process and the purpose."""
    dice = np.random.default_rng([process_number(), int(row.image_id, 16), *purpose.encode()])
    return float(dice.random())


@cache
def painter(is_retry: bool, has_taste: bool, has_passes: bool) -> Painter:
    """The one for the run itself or for its rounds, with scores and passes or without."""
    the_painter = Painter(is_retry)
    if has_taste:
        the_painter.scorers = {"taste": taste}
    if has_passes:
        the_painter.passes = Negatives()
    return the_painter


def painter_of(plan: Plan) -> Painter:
    """The one of a plan."""
    has_passes = bool(plan.job.passes) and not plan.job.separate_passes
    return painter(plan.round > 0, plan.job.keep is not None, has_passes)


class Negatives:
    """Stands for passes: negatives of the images that are ok and not flat, or failures at times.

    So may fail what has won among candidates.
    """

    def __call__(
        self,
        images: Sequence[DrawnImage],
        rows: Sequence[ImageRow],
        check: Callable[[], None],
    ) -> PassedImages:
        check()
        by_index = {row.index_in_part: row for row in rows}
        passed = [
            image if image.rgb is None else self._pass(image, by_index[image.index_in_part])
            for image in map(mark_flat, images)
        ]
        return PassedImages(passed, {"over": 1.0})

    def _pass(self, image: DrawnImage, row: ImageRow) -> DrawnImage:
        if process_number() and mood(row, "pass") < FAILING_PASSES:
            error = "RuntimeError: cannot pass this time"
            return replace(image, rgb=None, status="failed", error=error)
        assert image.rgb is not None
        return replace(image, rgb=255 - image.rgb)

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


def finish_night(
    job: Job, *, in_rounds: bool = False, meanwhile: Callable[[], None] = lambda: None
) -> Plan:
    """Do all that a night needs, with nothing in the way.

    `in_rounds`: make no part of the run itself. `meanwhile` is what happens between a round and its
    aggregation.
    """
    run = make_plan(job)
    store = open_store(run.uri)
    for shard in range(0 if in_rounds else len(run.plan.shards)):
        work(run.uri, shard)
    for _ in range(MAX_ROUNDS):
        with suppress(Incomplete):
            aggregate(run.uri)
        retry_round = plan_next_round(store, run.plan)
        if retry_round is None:
            break
        make_round(retry_round)
        meanwhile()
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
    """Fail unless each group of candidates has one winner, or a failure that a retry may mend."""
    for start in range(0, len(rows), candidates):
        group = rows[start : start + candidates]
        winners = [row for row in group if row["status"] == "ok" and row["candidate_rank"] == 1]
        statuses = {row["status"] for row in group}
        assert len(winners) <= 1, group
        assert winners or statuses & {"forgotten", "failed", "blank"}, group


def undisturbed(setting: Setting) -> tuple[Mapping[str, Outcome], ...]:
    """What the images of each night are where nothing is in the way, by a table of its own.

    Where images compete, what all of them would be.
    """
    return _undisturbed(Setting(setting.nights, passes=setting.passes, images=setting.images))


@cache
def _undisturbed(setting: Setting) -> tuple[Mapping[str, Outcome], ...]:
    folder = models.scratch("undisturbed")
    results = []
    for night in range(setting.nights):
        job = setting.job(folder, night)
        plan = finish_night(job)
        results.append(outcomes(open_store(f"{job.output}/{plan.run_id}"), plan))
    return tuple(results)


def random_setting(dice: Random) -> Setting:
    """Any kind of nights, in which each prompt has one image, or candidates compete."""
    losers: Losers | None = dice.choice((None, "drop", "keep"))
    return Setting(
        nights=dice.choice((1, 2)),
        format=dice.choice(("parquet", "webdataset", "files")),
        failed_share=dice.choice((0.3, 1.0)),
        skip_existing=dice.random() < 0.5,
        passes=dice.choice(("none", "at once", "separate")),
        part_images=dice.choice((1, 3)),
        images=1 if losers is None else CANDIDATES,
        losers=losers,
        ends_in_rounds=dice.random() < 0.5,
    )


Command = Literal["plan", "work", "draw", "passes", "retry", "aggregate", "forget", "gc"]
COMMANDS: tuple[Command, ...] = (
    "plan", "work", "work", "work", "draw", "passes", "retry", "retry", "aggregate", "aggregate",
    "forget", "gc",
)  # fmt: skip
Fate = Literal[
    "go on", "write", "end", "be killed", "be torn", "fail", "lose an answer", "be refused"
]
FATES: tuple[Fate, ...] = (
    "go on", "write", "write", "write", "end", "be killed", "be torn", "fail", "lose an answer",
    "be refused",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Begin:
    """A process begins, and falls asleep before a write: that of a number, if it gets so far."""

    command: Command
    night: int
    number: int
    """Of the shard to make, or of the row to take down."""
    is_thorough: bool
    """Whether to retry what no other try can mend."""
    writes: int


@dataclass(frozen=True, slots=True)
class Resume:
    """A sleeping process goes on, for so many accesses or writes, or ends."""

    process: int
    fate: Fate
    count: int


@dataclass(frozen=True, slots=True)
class EndAll:
    """All processes end, one after another, as garbage is collected only then."""


Event = Begin | Resume | EndAll


def random_event(dice: Random) -> Event:
    """Anything that may happen."""
    chance = dice.random()
    if chance < 0.03:
        return EndAll()
    if chance < 0.4:
        return Resume(dice.randrange(MAX_PROCESSES), dice.choice(FATES), dice.randint(1, 4))
    return Begin(
        command=dice.choice(COMMANDS),
        night=dice.randrange(2),
        number=dice.randrange(len(PROMPTS)),
        is_thorough=dice.random() < 0.5,
        writes=dice.choice((dice.randint(0, 3), dice.randint(0, 12), TO_THE_END)),
    )


class History:
    """What happens to the runs under one output."""

    def __init__(self, setting: Setting, planned: int) -> None:
        """Begin with so many of the nights planned."""
        self.setting = setting
        self.expected = undisturbed(setting)
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
        for night in range(min(planned, setting.nights)):
            make_plan(setting.job(self.folder, night))

    def take_place(self, happened: Sequence[Event]) -> None:
        """Let all of it happen; then finish with nothing in the way, and wake whoever sleeps."""
        with interleaving(self.output, self._note):
            try:
                for event in happened:
                    self._let(event)
                    self._check_finished_runs()
                self._finish()
            finally:
                for process in self.processes:
                    process.kill()
                shutil.rmtree(self.folder, ignore_errors=True)

    def _let(self, event: Event) -> None:
        match event:
            case Begin():
                self._begin(event)
            case Resume() if self.processes:
                process = self.processes[event.process % len(self.processes)]
                self._resume(process, event)
            case EndAll():
                for process in self.processes:
                    process.finish()
        self._bury()

    def _begin(self, event: Begin) -> None:
        work = None if len(self.processes) == MAX_PROCESSES else self._work_of(event)
        if work is None:
            return
        self.started += 1
        process = Process(event.command, work, self.started)
        self.processes.append(process)
        process.step_to_write(event.writes)

    def _work_of(self, event: Begin) -> Callable[[], object] | None:
        """What a process is to do; None where that makes no sense now."""
        night = event.night % self.setting.nights
        uri = f"{self.output}/night-{night}"
        is_planned = open_store(uri).exists(PLAN_KEY)
        is_separate = self.setting.passes == "separate"
        match event.command:
            case "plan":
                return partial(make_plan, self.setting.job(self.folder, night))
            case "work" if is_planned:
                return partial(work, uri, event.number)
            case "draw" | "passes" if is_planned and is_separate:
                return partial(work_stage, uri, event.number, event.command == "draw")
            case "retry" if is_planned:
                return partial(retry, uri, event.is_thorough)
            case "aggregate" if is_planned:
                return partial(aggregate, uri)
            case "forget" if open_store(uri).exists(SUCCESS_KEY):
                return self._forget(uri, f"row-{event.number}")
            case "gc" if not self.processes:
                self.is_collected = True
                return partial(gc, str(self.output), 0, remove=True)
        return None

    def _forget(self, uri: str, row_id: str) -> Callable[[], object]:
        take_down = partial(forget, uri, ForgetSelection(ids=(row_id,)), remove=True)
        self.forgets[uri, row_id] = take_down
        return take_down

    def _resume(self, process: Process, event: Resume) -> None:
        match event.fate:
            case "go on":
                process.step(event.count)
            case "write":
                process.step_to_write(event.count)
            case "end":
                process.finish()
            case "be killed" | "be torn":
                process.kill(torn=event.fate == "be torn")
            case "fail" | "lose an answer":
                process.fail(TryAgain("storage fails"), acted=event.fate == "lose an answer")
                process.step_to_write(event.count)
            case "be refused":
                process.fail(StorageRefused("storage refuses"), acted=False)
                process.step_to_write(event.count)

    def _check_finished_runs(self) -> None:
        assert self.broken is None, self.broken
        if self.is_changed:
            self.is_changed = False
            for store in self._finished_runs():
                check_whole(store)

    def _finish(self) -> None:
        plans = [self._finish_night(night) for night in range(self.setting.nights)]
        self.takes_down = True
        for take_down in self.forgets.values():
            take_down()
        self.takes_down = False
        results = self._check_nights(plans)
        for process in self.processes:
            process.finish()
            self._judge(process)
            if not self.is_collected:
                for store in self._finished_runs():
                    check_whole(store)
        for plan in plans:
            aggregate(f"{self.output}/{plan.run_id}")
        assert self.broken is None, self.broken
        assert self._check_nights(plans) == results

    def _finish_night(self, night: int) -> Plan:
        job = self.setting.job(self.folder, night)
        try:
            make_plan(job)
        except BadInput as error:
            if not self._is_overtaken(error):
                raise
            shutil.rmtree(self.output / f"night-{night}")  # as the sentence advises
        return finish_night(job, in_rounds=self.setting.ends_in_rounds, meanwhile=self._wake_half)

    def _is_overtaken(self, error: BadInput) -> bool:
        """Whether the runs that a night skips have changed since its planner was interrupted."""
        return self.setting.skip_existing and "exists with other content" in str(error)

    def _wake_half(self) -> None:
        for process in self.processes:
            # A run that is not finished is old to `gc` here, so that it may be removed.
            if process.number % 2 and process.name != "gc":
                process.finish()
        self._bury()

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
            has_winner = any(image_id in made and made[image_id][0] == "ok" for image_id in ids)
            for image_id in ids:
                status, *_ = made.get(image_id, ("forgotten" if is_gone else "outscored",))
                is_other = status == "outscored" and self.setting.losers is not None
                is_other |= status == "forgotten" and image_id in gone
                # A loser that wins in each round is never taken from one.
                is_other |= status == "failed" and self.setting.losers == "keep" and has_winner
                assert is_other or made[image_id] == expected[image_id], image_id

    def _finished_runs(self) -> list[Store]:
        """The runs that claim to be finished."""
        return [
            open_store(str(path.parent)) for path in sorted(self.output.glob(f"*/{SUCCESS_KEY}"))
        ]

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
        if not isinstance(error, BadInput) or isinstance(error, StorageRefused):
            return
        if self.is_collected:
            return
        if not self._is_right(process, error):
            raise AssertionError(f"{process.name} ended with: {error}") from error

    def _is_right(self, process: Process, error: BadInput) -> bool:
        """Whether a command was right to refuse its work."""
        if process.name == "forget":
            return "is not finished" in str(error)
        return process.name == "plan" and self._is_overtaken(error)

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


def check_history(seed: str) -> None:
    """Try one history, all of which follows from its seed; fails where it breaks a promise."""
    dice = Random(seed)  # noqa: S311  # no secret
    setting = random_setting(dice)
    planned = dice.choice((0, 1, 2, 2))
    happened = [random_event(dice) for _ in range(dice.randint(5, 25))]
    try:
        History(setting, planned).take_place(happened)
    except Exception as error:
        events = "\n".join(map(str, happened))
        error.add_note(f"seed {seed}: {setting}, {planned} planned\n{events}")
        raise


def check_protocol(examples: int, seed: int) -> None:
    """Try so many histories."""
    with without_reports() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1790000000")
        patch.setattr(gc_module, "REMOVE_BATCH", 1)
        for number in range(examples):
            check_history(f"{seed}-{number}")


def main() -> None:
    """Look for a history that breaks a promise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    check_protocol(options.examples, options.seed)


if __name__ == "__main__":
    main()
