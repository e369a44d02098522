"""Histories of a run's processes: any interleaving of them ends in the same dataset.

They run the real code on a local disk; only the pictures are no model's. They plan, make shards and
help with others, aggregate, retry, take images down and collect garbage, each any number of times
at once. Any of them may be killed or fall asleep before any access to the store, and wake up at the
very end; and any access may fail, with or without effect.
`python -m tests.histories --examples 1000 --seed 7` looks for a history that breaks a promise.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, KilnError, StorageRefused, TryAgain
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY
from imagekiln.steps.runs.manifest import read_forgotten
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.interleaving import Process, interleaving
from tests.nights import (
    CANDIDATES,
    PROMPTS,
    Outcome,
    Setting,
    finish_night,
    retry,
    without_reports,
    work,
)  # fmt: skip
from tests.wholeness import check_globbed, check_whole, outcomes, undisturbed

MAX_PROCESSES = 6
TO_THE_END = 1000  # more writes than a process has


def random_setting(dice: Random) -> Setting:
    """Any kind of nights, in which each prompt has one image, or candidates compete."""
    keeps_best = dice.random() < 0.6
    return Setting(
        nights=dice.choice((1, 2)),
        failed_share=dice.choice((0.3, 1.0)),
        skip_existing=dice.random() < 0.5,
        passes=dice.random() < 0.5,
        part_images=dice.choice((1, 3)),
        images=CANDIDATES if keeps_best else 1,
        keeps_best=keeps_best,
    )


Command = Literal["plan", "work", "retry", "aggregate", "forget", "gc"]
COMMANDS: tuple[Command, ...] = (
    "plan", "work", "work", "work", "retry", "retry", "aggregate", "aggregate",
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
        match event.command:
            case "plan":
                return partial(make_plan, self.setting.job(self.folder, night))
            case "work" if is_planned:
                return partial(work, uri, event.number)
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
        if self.is_changed:
            self.is_changed = False
            for store in self._finished_runs():
                check_whole(store)

    def _finish(self) -> None:
        plans = [self._finish_night(night) for night in range(self.setting.nights)]
        for take_down in self.forgets.values():
            take_down()
        results = self._check_nights(plans)
        for process in self.processes:
            process.finish()
            self._judge(process)
            if not self.is_collected:
                for store in self._finished_runs():
                    check_whole(store)
        for plan in plans:
            aggregate(f"{self.output}/{plan.run_id}")
        for take_down in self.forgets.values():
            take_down()  # buries again what a late forget has left
        assert self._check_nights(plans) == results

    def _finish_night(self, night: int) -> Plan:
        job = self.setting.job(self.folder, night)
        try:
            make_plan(job)
        except BadInput as error:
            if "was removed" not in str(error):
                raise
            for process in self.processes:
                if process.name == "gc":  # which would go on to remove what is made now
                    process.finish()
            shutil.rmtree(self.output / f"night-{night}")  # in place of another name
        return finish_night(job, meanwhile=self._wake_half)

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
            check_globbed(store)
            verify(store.uri)
            results[plan.run_id] = outcomes(store, plan)
            forgotten = read_forgotten(store, read_head(store).commit).to_pylist()
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
                is_other = status == "outscored" and self.setting.keeps_best
                is_other |= status == "forgotten" and image_id in gone
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
        return process.name == "forget" and "not " in str(error)

    def _note(self, *_: object) -> None:
        self.is_changed = True


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


def check_histories(examples: int, seed: int) -> None:
    """Try so many histories."""
    with without_reports() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1790000000")
        for number in range(examples):
            check_history(f"{seed}-{number}")


def main() -> None:
    """Look for a history that breaks a promise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    check_histories(options.examples, options.seed)


if __name__ == "__main__":
    main()
