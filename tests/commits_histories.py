"""Histories of the commit protocol: any interleaving of its commands, and every fault.

A command may fall asleep before any access, and wake up at the very end. It may be killed there,
fail with or without effect, or send a request twice. After each write all promises are checked.
Then the commands run undisturbed, the sleepers wake, and the commands run once more.
`python -m tests.commits_histories explore 30000 7`: no history breaks a promise.
`python -m tests.commits_histories mutate 8000 7`: without any of the rules, one does.
`python -m tests.commits_histories show RULE SEED`: the writes of that history.
"""

import sys
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tests import commits_model as model
from tests.commits_model import BURIED, Commit, Protocol, TryAgain, start_over

# Each rule, and the number of a history of seed 1 that breaks a promise without it.
RULES = {
    "plan-once": 2769, "images-once": 29, "commits-once": 1, "start-over": 1,
    "metadata-first": 1, "digest": 1, "announce": 13, "count-last": 2,
    "report-last": 863, "bury-not-delete": 1, "bury-absent": 39, "bury-last": 1,
    "bury-all": 53, "bury-images": 1, "bury-report": 1, "bury-data": 1,
    "skip-complete": 505, "resume": 64, "retry-counted": 5, "retry-refuses": 13,
    "forget-complete": 5, "finish-pending": 32, "gc-unfinished": 48, "removed-commit": 24,
    "export-own-first": 721, "export-announce": 1650,
    "attempt-first": 2613, "unended-minute": 862,
}  # fmt: skip
RICH, POOR = 99, 3  # budgets, in minutes
MAKE = ("generate 0", "generate 1", "aggregate")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Commands of a time in a run's life."""

    commands: str
    begun: tuple[int, ...] = (0, 1, 1, 2, 4, 4)  # commands of the job that went well before
    later_share: float = 0.1  # of commands on run B
    budget: int = RICH
    faults: float = 0.15
    most: int = 6  # processes at once


USUAL = Scenario(
    "plan generate generate help aggregate aggregate aggregate accept retry retry forget forget "
    "forget gc export export read verify preview"
)
SCENARIOS = (
    USUAL,
    USUAL,
    Scenario("retry generate aggregate forget forget export export export", begun=(4,)),
    Scenario("plan plan generate aggregate gc", later_share=0.4),
    Scenario("generate help help", begun=(1,), budget=POOR, faults=0.6, most=3),
)


class World:
    """The store, and the promises about all that it holds."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.objects: dict[str, Any] = {}
        self.commits: dict[str, dict[str, Commit]] = {"A": {}, "B": {}, "E": {}}
        self.rows: dict[str, dict[str, model.Row]] = {"A": {}, "B": {}}
        self.exported: list[str] = []
        self.log: list[str] = []

    def apply(self, verb: str, key: str, value: object = None) -> object:
        """Answer a request. After a write, check every promise."""
        if verb == "get":
            return self.objects.get(key)
        if verb == "list":
            return sorted(name for name in self.objects if name.startswith(key))
        rules, kind = self.protocol.rules, key.split("/")[1]
        if value is BURIED and verb == "put":
            is_left = key not in self.objects and "bury-absent" not in rules
            if is_left or f"bury-{kind}" not in rules:
                return True
            verb = "put" if "bury-not-delete" in rules else "delete"
        elif kind in ("plan", "images", "commits") and f"{kind}-once" not in rules:
            verb = verb.replace("create", "put")
        if verb == "create" and key in self.objects:
            return False
        self.objects[key] = value
        if verb == "delete":
            del self.objects[key]
        self._check_forgotten()
        self._check_commits(key[0])
        return True

    def state(self, run: str) -> Commit:
        """The highest commit."""
        commits = self.commits[run]
        return commits[max(commits)] if commits else Commit()

    def glob(self, folder: str) -> list[str]:
        """The images in a folder's files."""
        parts = (part for key, part in self.objects.items() if key.startswith(folder))
        return sorted(image for part in parts for image in part if part[image])

    def _check_forgotten(self) -> None:
        gone = {"A": self.protocol.forgotten, "B": (), "E": self.protocol.unexported}
        for key, value in self.objects.items():
            if key.split("/")[1] in ("images", "report", "data"):
                back = [image for image in gone[key[0]] if value.get(image)]
                assert not back, f"{key} holds {back}, which are forgotten"

    def _check_commits(self, run: str) -> None:
        commits, objects = self.commits[run], self.objects
        assert all(objects.get(key) is commits[key] for key in commits), "a commit is changed"
        commits |= {key: objects[key] for key in objects if key.startswith(f"{run}/commits/")}
        if run == "E":
            self._check_export()
        elif not self.state(run).is_removed:
            self._check_rows(run)

    def _check_rows(self, run: str) -> None:
        rows: dict[str, model.Row] = {}
        for key in self.state(run).manifests.values():
            assert key in self.objects, f"the highest commit names {key}, which is absent"
            rows |= self.objects[key]
        for image, row in rows.items():
            is_there = self.objects.get(row.part, BURIED).get(image) == row.drawing
            assert is_there, f"the highest commit names {image} in {row.part}, where it is not"
        for image, row in self.rows[run].items():
            after = rows.get(image, model.Row("failed"))
            is_same = (row.status, row.drawing) == (after.status, after.drawing)
            may_change = row.status == "failed" or after.status == "forgotten"
            is_right = image in rows and (is_same or may_change)
            assert is_right, f"{image} was {row}, and is {after}"
        self.rows[run] = rows

    def _check_export(self) -> None:
        files = self.state("E").files
        for name, images in files.items():
            is_whole = {*self.objects.get(name, BURIED)} == {*images}
            assert is_whole, f"{name} is absent or has other images than {images}"
        exported = sorted("".join(files.values()))
        assert len({*exported}) == len(exported), f"an export has {exported}"
        lost = {*self.exported} - {*exported} - self.state("A").forgotten
        assert not lost, f"an export of {self.exported} becomes {exported}"
        self.exported = exported


class Process:
    """A command that sleeps before each access. Its name ends with a shard or with images."""

    def __init__(self, world: World, name: str, run: str, number: int = 0) -> None:
        self.world = world
        self.name = f"{run} {name} #{number}"
        self.run = run
        self.error: Exception | None = None
        self.access: tuple[Any, ...] | None = None
        self.steps = self._begin(world.protocol, *name.split(" "))
        self._resume(None)

    def _begin(self, protocol: Protocol, name: str, argument: str = "") -> model.Steps[object]:
        match name:
            case "generate" | "help":
                shard = int(argument) if argument else None
                return protocol.generate(self.run, self.name, shard)
            case "plan" | "gc" | "read" | "verify" | "preview":
                steps: model.Steps[object] = getattr(protocol, name)(self.run)
                return steps
            case "accept":
                return start_over(partial(protocol.aggregate, self.run, accepts_failures=True))
            case "forget":
                return start_over(partial(protocol.forget, self.run, frozenset(argument)))
            case "export":
                return start_over(protocol.export)
        return start_over(partial(getattr(protocol, name), self.run))

    def step(self, fate: str = "") -> None:
        """Make one access, or meet a fate there."""
        assert self.access is not None
        if self.is_writing():
            self.world.log.append(f"{self.name}: {' '.join(self.access[:2])} {fate}")
        if fate == "killed":
            self.access = None
            return
        answer = None if fate == "fails" else self.world.apply(*self.access)
        if fate == "sent twice":
            answer = self.world.apply(*self.access)
        self._resume(answer, fails=fate in ("fails", "answer lost"))

    def is_writing(self) -> bool:
        """Return true if the next access may change the store."""
        return self.access is not None and self.access[0] not in ("get", "list")

    def finish(self) -> Exception | None:
        """Go on to the end."""
        while self.access:
            self.step()
        return self.error

    def _resume(self, answer: object, *, fails: bool = False) -> None:
        steps = self.steps
        try:
            self.access = steps.throw(TryAgain("storage")) if fails else steps.send(answer)
        except StopIteration:
            self.access = None
        except (model.Refused, TryAgain) as error:
            self.access, self.error = None, error


class History:
    """The life of a run, of a later run and of an export."""

    def __init__(self, seed: str, rules: frozenset[str]) -> None:
        self.dice = Random(seed)  # noqa: S311  # no secret
        self.scenario = self.dice.choice(SCENARIOS)
        self.protocol = Protocol(rules, self.scenario.budget)
        self.world = World(self.protocol)
        self.processes: list[Process] = []
        self.most_alive = 0
        self.forgets: list[str] = []
        self.started = 0
        self.is_interrupted = False

    def take_place(self) -> None:
        """Let it happen, then finish undisturbed, twice."""
        for name in ("plan", *MAKE)[: self.dice.choice(self.scenario.begun)]:
            Process(self.world, name, "A").finish()
        for _ in range(self.dice.randint(5, 40)):
            is_full = len(self.processes) == self.scenario.most
            if not self.processes or (not is_full and self.dice.random() < 0.5):
                self._start()
            self._disturb()
            self._check_idle()
        if self.scenario.budget == RICH:
            self._finish()
            for process in self.processes:
                process.finish()
            self._finish()

    def _start(self) -> None:
        name = self.dice.choice(self.scenario.commands.split())
        is_later = name in ("plan", "generate", "aggregate")
        is_later &= self.dice.random() < self.scenario.later_share
        if name == "generate":
            name = f"generate {0 if is_later else self.dice.randrange(2)}"
        elif name == "forget":
            images = self.dice.sample("abcde", self.dice.choice((1, 1, 2, 5)))
            name = f"forget {''.join(images)}"
            self.forgets.append(name)
        self.started += 1
        self.processes.append(Process(self.world, name, "B" if is_later else "A", self.started))
        self.most_alive = max(self.most_alive, len(self.processes))

    def _disturb(self) -> None:
        """Let a process go on until it ends, sleeps or meets a fault."""
        dice = self.dice
        process = self.processes[-1] if dice.random() < 0.4 else dice.choice(self.processes)
        writes = dice.choice((0, 1, 1, 2, 3, RICH))
        reads = dice.choice((RICH, RICH, dice.randint(0, 3), dice.randint(0, 12)))
        while process.access and (writes if process.is_writing() else reads):
            writes -= process.is_writing()
            reads -= not process.is_writing()
            process.step()
        if process.access and dice.random() < self.scenario.faults:
            process.step(dice.choice(("killed", "fails", "answer lost", "sent twice")))
            self.is_interrupted |= process.access is None
        self.is_interrupted |= isinstance(process.error, TryAgain)
        self.processes = [each for each in self.processes if each.access]

    def _check_idle(self) -> None:
        minutes, budget = self.protocol.minutes, self.protocol.budget
        is_within = minutes <= budget + model.PARTS_A_CHECK * self.most_alive
        assert is_within, f"{minutes} minutes are spent of {budget}"
        images = self.world.glob("A/images/")
        is_busy = self.processes or self.is_interrupted
        assert is_busy or len({*images}) == len(images), f"a glob finds {images}"

    def _finish(self) -> None:
        """Run the same commands undisturbed: all complete, and leave the right images."""
        names = ("plan", *MAKE, *(("retry", *MAKE) * 6), *self.forgets, "aggregate", "export")
        commands = [*((name, "A") for name in names), *((name, "B") for name in ("plan", *MAKE))]
        is_removed = False
        for name, run in commands:
            pending = self.world.state("A").pending
            if name == "retry" and pending:
                Process(self.world, f"forget {''.join(pending.images)}", "A").finish()
            error = Process(self.world, name, run).finish()
            is_removed |= "removed" in str(error)
            assert is_removed or not error, f"{name} of {run} cannot complete: {error}"
        rows = {} if is_removed else self.world.rows["A"]
        held = {image for image, row in rows.items() if row.status != "failed"}
        is_held = held | {*self.world.rows["B"]} >= {*"acf"}
        assert is_held, "a later run skipped an image that no run has"
        if not is_removed:
            self._check_result()

    def _check_result(self) -> None:
        rows, commits, objects = self.world.rows["A"], self.world.commits["A"], self.world.objects
        ok = sorted(image for image, row in rows.items() if row.status == "ok")
        assert {*rows} == {*"abcde"}, f"the run has {[*rows]}"
        for folder in ("A/images/", "E/data/"):
            images = self.world.glob(folder)
            assert images == ok, f"{ok} are ok, a glob of {folder} finds {images}"
        assert max(commits).replace("commits", "report") in objects, "there is no report"
        is_ok = any(state.is_ok for state in commits.values())
        assert is_ok == ("A/_SUCCESS" in objects), "_SUCCESS and commits differ"


def violation(seed: str, without: str = "") -> str | None:
    """Try a history, without a rule. Returns the promise that it breaks, and its writes."""
    history = History(seed, frozenset(RULES) - {without})
    try:
        history.take_place()
    except AssertionError as error:
        return "\n".join((f"{seed}: {error}", *history.world.log))
    return None


def main(mode: str, *arguments: str) -> None:
    """Explore, mutate or show."""
    if mode == "show":
        rule, seed = arguments
        sys.exit(violation(seed, rule))
    count, seed, *rules = arguments
    for rule in rules or (RULES if mode == "mutate" else ("",)):
        found = (violation(f"{seed}-{number}", rule) for number in range(int(count)))
        text = next(filter(None, found), "no violation")
        print(f"{rule}: {text if mode == 'explore' else text.splitlines()[0]}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
