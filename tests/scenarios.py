"""Scenarios of what can go wrong in the life of a run, each made from a seed alone."""

import os
import random
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Incomplete, KilnError, TryAgain
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY, SUSPENDED_KEY
from imagekiln.steps.runtime.signals import Stopped, stop_on_signals
from tests.disturbance import ALL_FAULTS, Answer, Disturbance, Fault, Forward
from tests.life import Content, Life, Step, lasting
from tests.s3 import forget_connections
from tests.texts import chance

MAX_BURST = 60
MAX_ATTEMPTS = 4
WAIT_SECONDS = 600.0
FOREVER = float("inf")
LASTING_FAULTS = ("error", "slow down", "unavailable", "unanswered", "reset", "expired", "cut")
FORGOTTEN = "forgotten/"
# What a finished run promises; the rest of its objects serves people.
PROMISED = (
    *("manifest/", "image-ids/", "images/", "index/", "shards/", "plan.json", FORGOTTEN),
    *("data/", "_plan/", "export.json"),
)
# Of who wakes: what it was about to do may be undone, or done, or gone.
ZOMBIE_CODES = (BadInput.exit_code, Incomplete.exit_code, TryAgain.exit_code)
KINDS = ("fault", "fault", "fault", "burst", "kill", "stop", "zombie", "pair")


# What leaves a client as it was: another needs time, and one that was refused often repeats less.
LASTING_CONNECTIONS = ("fault", "stop")


class Damage(AssertionError):
    """A scenario ended otherwise than it may."""


@dataclass(frozen=True, slots=True)
class Place:
    """A request of a step: what it is, and how many of the same went before it."""

    request: str
    number: int


@dataclass(slots=True)
class Bench:
    """A life that was recorded, and two proxies that it can be disturbed by."""

    life: Life
    network: Disturbance
    other_network: Disturbance
    log: list[str] = field(default_factory=list)
    _is_connected: bool = False

    def play(self, seed: int, kind: str | None = None, step: str | None = None) -> str:
        """Play the scenario of this seed. Raises Damage. Returns what was done."""
        dice = chance(seed)
        kind = kind or dice.choice(KINDS)
        step = step or dice.choice(list(self.life.steps))
        self.log = [f"seed {seed}", self.life.format, step, kind]
        self._begin(step, kind)
        play: Callable[[str, random.Random], None] = {
            "zombie": self._play_zombie,
            "pair": self._play_pair,
        }.get(kind, lambda name, dice: self._play_alone(name, kind, dice))
        with self._telling_what_was_done():
            play(step, dice)
        return "; ".join(self.log)

    def play_fault(self, step: str, request: str, name: str) -> None:
        """Spoil the first of these requests of a step, then let it end. Raises Damage."""
        self.log = [self.life.format, step, f"{name} at {request}"]
        self._begin(step, "fault")
        self.network.from_request(request, 0, ALL_FAULTS[name])
        with self._telling_what_was_done():
            self._try(step)
            self.network.rest()
            self._require_finished_whole(step, self.life.content())
            self._finish(step)

    def _begin(self, step: str, kind: str) -> None:
        self.life.restore(self.life.before[step])
        if not self._is_connected:
            self._connect(self.network)
        self._is_connected = kind in LASTING_CONNECTIONS

    @contextmanager
    def _telling_what_was_done(self) -> Iterator[None]:
        try:
            yield
        except Damage as error:
            raise Damage("; ".join([*self.log, str(error)])) from error
        finally:
            self.network.rest()
            self.other_network.rest()

    def place(self, step: str, dice: random.Random) -> Place:
        """A request of the step."""
        requests = self.life.requests[step]
        request = dice.choice(sorted(set(requests)))
        return Place(request, dice.randrange(requests.count(request)))

    def _play_alone(self, step: str, kind: str, dice: random.Random) -> None:
        """Disturb the step, perhaps several times, then let it end."""
        for attempt in range(MAX_ATTEMPTS):
            self._disturb(self.network, step, kind, dice)
            self._try(step)
            self.network.rest()
            content = self.life.content()
            self._require_finished_whole(step, content)
            if lasting(content) == lasting(self.life.after[step]) and not attempt:
                return
            if dice.random() < 0.6:
                break
        self._finish(step)

    def _disturb(self, network: Disturbance, step: str, kind: str, dice: random.Random) -> None:
        place = self.place(step, dice)
        name = dice.choice(sorted(ALL_FAULTS if kind == "fault" else LASTING_FAULTS))
        fault = ALL_FAULTS[name]
        times: float = 1
        if kind == "burst":
            times = dice.randint(2, MAX_BURST)
        elif kind == "kill":
            name = dice.choice(["before", "after"])
            fault = _dying(acts=name == "after")
            times = FOREVER
        elif kind == "stop":
            name = "SIGTERM"
            fault = _stopping
        self.log.append(f"{name} x{times} at {place.request} #{place.number}")
        network.from_request(place.request, place.number, fault, times)

    def _try(self, step: str) -> None:
        """One attempt, in this thread."""
        try:
            with stop_on_signals(at_once=True):
                self.life.do(step)
        except Stopped:
            self.log.append("stopped")
        except AssertionError as error:
            raise Damage(str(error)) from error
        except KilnError as error:
            self.log.append(f"exit {error.exit_code}: {error}")
            if error.exit_code != TryAgain.exit_code:
                raise Damage(f"what passes ended in exit code {error.exit_code}") from error

    def _require_finished_whole(self, step: str, content: Content) -> None:
        """A run with the success marker has what it had before, or all that it shall have.

        Which images it shall not have may be written down, before any of them is taken down.
        """
        for run in self.life.wholes:
            if f"{run}/{SUCCESS_KEY}" not in content:
                continue
            before = self.life.before[step]
            after = self.life.after[step]
            states = [
                _promised(state, run)
                for state in (before, after, before | _forgotten(after, run))
                if f"{run}/{SUCCESS_KEY}" in state
            ]
            if _promised(content, run) not in states:
                raise Damage(f"{run} looks finished, and is not: {_difference(content, after)}")

    def _finish(self, step: str) -> None:
        """Run the step undisturbed: its result must be that of an undisturbed life."""
        try:
            self.life.do(step)
        except KilnError as error:
            raise Damage(f"undisturbed, exit {error.exit_code}: {error}") from error
        differing = _difference(self.life.content(), self.life.after[step])
        if differing:
            raise Damage(f"another result: {differing}")

    def _connect(self, network: Disturbance) -> None:
        os.environ["AWS_ENDPOINT_URL"] = network.endpoint
        forget_connections()

    def _play_zombie(self, step: str, dice: random.Random) -> None:
        """Let the step sleep at a request while others do it, and what follows it; then wake it."""
        names = list(self.life.steps)
        if step in self.life.more_work:
            step = names[names.index(step) + 1]
            self.life.restore(self.life.before[step])
            self.log.append(f"in place of it, {step}")
        first = names.index(step)
        last = min(len(names) - 1, first + dice.choice([0, 0, 1, 2, 4]))
        while names[last] in self.life.more_work:
            last -= 1
        place = self.place(step, dice)
        acts = dice.random() < 0.5
        dies_after = dice.choice([FOREVER, FOREVER, dice.randint(0, 12)])
        self.log.append(f"asleep {'after' if acts else 'at'} {place.request} #{place.number}")
        sleep = Sleep(acts, dies_after)
        self._connect(self.other_network)
        self.other_network.from_request(place.request, place.number, sleep.fault, FOREVER)
        zombie = Writer(self.life.steps[step])
        zombie.start()
        sleep.wait(zombie)
        self._connect(self.network)
        try:
            for name in names[first : last + 1]:
                self._finish(name)
        finally:
            self.log.append(f"wakes after {names[last]}, dies after {dies_after}")
            sleep.wake()
            zombie.join(WAIT_SECONDS)
        if zombie.is_alive():
            raise Damage("the zombie never ends")
        self._judge_writer(zombie, ZOMBIE_CODES)
        content = self.life.content()
        self._require_finished_whole(names[last], content)
        told = isinstance(zombie.error, TryAgain)
        self._finish_after_zombie(names[last], content, told=told, killed=dies_after < FOREVER)

    def _finish_after_zombie(
        self, step: str, content: Content, *, told: bool, killed: bool
    ) -> None:
        """What was finished is so still; aggregated again, its report and cards are current too.

        Where the zombie slept as it removed a success marker, it has told to run it again and,
        unless it was killed then, a run is suspended.
        """
        for run in self.life.wholes:
            marker = f"{run}/{SUCCESS_KEY}"
            if marker not in self.life.after[step]:
                continue
            is_run = f"{run}/{PLAN_KEY}" in content
            held = killed or not is_run or f"{run}/{SUSPENDED_KEY}" in content
            if marker not in content and not (told and held):
                raise Damage(f"{run} was finished, and is not any more")
            if is_run:
                aggregate(f"{self.life.root}/{run}")
        self._finish(step)

    def _judge_writer(self, writer: "Writer", codes: Collection[int]) -> None:
        error = writer.error
        if error is None:
            return
        if not isinstance(error, KilnError):
            raise Damage(f"ended in {error!r}") from error
        self.log.append(f"its exit {error.exit_code}: {error}")
        if error.exit_code not in codes:
            raise Damage(f"ended in exit code {error.exit_code}")

    def _play_pair(self, step: str, dice: random.Random) -> None:
        """Let two do the step at once, each disturbed or not."""
        writers = []
        for network in (self.other_network, self.network):
            self._connect(network)
            if dice.random() < 0.5:
                self._disturb(network, step, "fault", dice)
            writer = Writer(partial(self.life.do, step))
            writer.start()
            _wait_for_request(network, writer)
            writers.append(writer)
        for writer in writers:
            writer.join(WAIT_SECONDS)
            if writer.is_alive():
                raise Damage("a writer never ends")
            self._judge_writer(writer, [TryAgain.exit_code])
        self.network.rest()
        self.other_network.rest()
        self._require_finished_whole(step, self.life.content())
        self._finish(step)


class Writer(threading.Thread):
    """A step in a thread, and how it failed."""

    def __init__(self, step: Step) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._step = step

    def run(self) -> None:
        """Do the step."""
        try:
            self._step()
        except BaseException as error:  # noqa: BLE001  # judged by whoever joins
            self.error = error


class Sleep:
    """Requests that wait until they are woken; after so many more, the process is dead."""

    def __init__(self, acts: bool, dies_after: float) -> None:
        self._acts = acts
        self._left = dies_after
        self._asleep = threading.Event()
        self._awake = threading.Event()
        self._lock = threading.Lock()

    def wait(self, writer: Writer) -> None:
        """Wait until a request sleeps, or the writer has ended."""
        while writer.is_alive() and not self._asleep.wait(0.005):
            pass

    def wake(self) -> None:
        """Let all go on."""
        self._awake.set()

    def fault(self, forward: Forward) -> Answer | None:
        """The fault of each request from the one on that sleeps."""
        if self._awake.is_set():
            with self._lock:
                self._left -= 1
                is_dead = self._left < 0
            return None if is_dead else forward()
        answer = forward() if self._acts and not self._asleep.is_set() else None
        self._asleep.set()
        self._awake.wait(WAIT_SECONDS)
        return forward() if answer is None else answer


def _wait_for_request(network: Disturbance, writer: Writer) -> None:
    """Wait until the writer has a connection, which it keeps."""
    while writer.is_alive() and not network.requests:
        writer.join(0.002)


def _dying(*, acts: bool) -> Fault:
    """Nothing reaches the server any more, as after SIGKILL; the first request may."""
    first = [acts]

    def fault(forward: Forward) -> None:
        if first and first.pop():
            forward()

    return fault


def _stopping(forward: Forward) -> Answer:
    os.kill(os.getpid(), signal.SIGTERM)
    return forward()


def _promised(content: Content, run: str) -> Content:
    return {
        key: body
        for key, body in content.items()
        if key.startswith(tuple(f"{run}/{name}" for name in PROMISED))
        and "/images/00009-" not in key
    }


def _forgotten(content: Content, run: str) -> Content:
    return {key: body for key, body in content.items() if key.startswith(f"{run}/{FORGOTTEN}")}


def _difference(content: Content, expected: Content) -> list[str]:
    """The keys that are missing, too many, or have other bytes, of those that a life decides."""
    content = lasting(content)
    expected = lasting(expected)
    missing = [f"-{key}" for key in expected.keys() - content.keys()]
    extra = [f"+{key}" for key in content.keys() - expected.keys()]
    both = content.keys() & expected.keys()
    other = [f"~{key}" for key in both if content[key] != expected[key]]
    return sorted([*missing, *extra, *other])
