"""From a sweep to a dataset on a hub by commands, each killed at moments that chance chooses.

A moment is a number of accesses to the disk and of requests to the hub, so that a seed repeats it.
"""

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import yaml

from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from tests.dataset_hub import REPOSITORY, TOKEN, DatasetHub
from tests.jobs import SHAPES, files, write
from tests.processes import Begun, Child
from tests.scorers import clip_folder

VERSION = "v1"
CANDIDATES = 4
MAX_KILLS = 3  # of one command
NEVER = -1
# By name, what Python says before it does it; each of these has a path first.
ACCESSES = ("open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir")
# What a run says of its own work, and what no reader looks at.
INFORMATIVE = ("stats/", "account/", "work/", "turns/", "report/", "summary.json", "rate.json")
TORN = ".writing-"


@dataclass(frozen=True, slots=True)
class Published:
    """What the commands leave: the files of the run and of its export, and those of a version."""

    run: dict[str, bytes]
    export: dict[str, bytes]
    version: dict[str, bytes]


@dataclass(slots=True)
class Chain:
    """The commands on one folder and one hub. `moments` says how many each has, undisturbed.

    The sweep has each of `seeds` with two prompts and two values of guidance.
    """

    folder: Path
    hub: DatasetHub
    seeds: tuple[int, ...] = (10,)
    moments: dict[str, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the job."""
        self.root.mkdir(parents=True)
        colors = {"color": ["red", "blue"], "id": ["r", "b"]}
        table = write(self.folder / "colors.parquet", colors)
        job = {
            "name": "sweep",
            "run_id": "best",
            "prompts": {
                "template": "a {{ color }} circle",
                "table": table,
                "sweep": {"seed": [*self.seeds], "guidance": [1.5, 3.0]},
            },
            "scores": {"clip": {"kind": "clip_score", "id": str(clip_folder())}},
            "keep": f"best 1 of {CANDIDATES} by clip",
            "output": str(self.root / "out"),
            "model": SHAPES,
            "defaults": {"steps": 1, "width": 32, "height": 32},
            "batch": {"images": 4},
            "part": {"images": 8},
            "shard": {"images": 24},
            "device": "cpu",
        }
        self._job_file.write_text(yaml.safe_dump(job))

    @property
    def root(self) -> Path:
        """The folder that the commands write to."""
        return self.folder / "data"

    @property
    def _job_file(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def commands(self) -> dict[str, tuple[str, ...]]:
        """The commands in their order."""
        run = str(self.root / "out" / "best")
        exported = str(self.root / "export")
        return {
            "run": ("run", str(self._job_file)),
            "export": ("export", run, exported, "--partition-by", "prompt"),
            "push": ("push", exported, f"hf://datasets/{REPOSITORY}", "--version", VERSION),
        }

    def make_undisturbed(self) -> Published:
        """Run all commands to their ends."""
        for name in self.commands:
            counted = self.folder / f"{name}.moments"
            self._finish(name, counted)
            self.moments[name] = int(counted.read_text())
        return self._published()

    def make_killed(self, seed: int) -> Published:
        """Begin anew, kill each command a few times, and let it end then."""
        dice = random.Random(seed)  # noqa: S311  # nothing secret
        shutil.rmtree(self.root)
        self.root.mkdir()
        self.hub.clear()
        self.log = [f"seed {seed}"]
        for name in self.commands:
            for _ in range(dice.randint(1, MAX_KILLS)):
                self._kill(name, dice)
            self._finish(name)
        return self._published()

    def planned_images(self) -> int:
        """The images of the run, with those that were outscored."""
        return load_plan(open_store(str(self.root / "out" / "best"))).counts.images

    def _kill(self, name: str, dice: random.Random) -> None:
        number = dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        moment = dice.randrange(self.moments[name])
        code = self._start(name, moment, number).join()
        self.log.append(f"{name}: {number.name} at {moment} of {self.moments[name]}, exit {code}")
        if code not in (0, 75, -signal.SIGKILL):
            raise AssertionError("; ".join(self.log))

    def _finish(self, name: str, counted: Path | None = None) -> None:
        if self._start(name, NEVER, signal.SIGKILL, counted).join() != 0:
            raise AssertionError(f"{'; '.join(self.log)}: {name} failed, undisturbed")

    def _start(
        self, name: str, moment: int, number: signal.Signals, counted: Path | None = None
    ) -> Child:
        killer = Killer(str(self.root), moment, number, counted)
        return Child(run_command, killer, self.hub.endpoint, self.commands[name])

    def _published(self) -> Published:
        run = {
            name: content
            for name, content in files(self.root / "out" / "best").items()
            if not name.startswith(INFORMATIVE) and TORN not in name
        }
        export = {
            name: content
            for name, content in files(self.root / "export").items()
            if TORN not in name
        }
        return Published(run, export, dict(self.hub.commits[self.hub.tags[VERSION]]))


@dataclass(frozen=True, slots=True)
class Killer:
    """Sends its own process a signal before the access `moment` to what is below `root`."""

    root: str
    moment: int
    signal: signal.Signals
    counted: Path | None  # where to write how many accesses there were

    def watch(self) -> tuple[Callable[[], None], Iterator[int]]:
        """Begin to count, and return what counts one more."""
        numbers = count()

        def step() -> None:
            if next(numbers) == self.moment:
                os.kill(os.getpid(), self.signal)

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event in ACCESSES and str(arguments[0]).startswith(self.root):
                step()

        sys.addaudithook(hook)
        return step, numbers


def run_command(_: Begun, killer: Killer, endpoint: str, arguments: tuple[str, ...]) -> None:
    """Run a command of the command line in this process, whose hub is at `endpoint`."""
    import httpx2
    from huggingface_hub import constants

    from imagekiln.workflows.cli.main import main

    step, numbers = killer.watch()
    handle_request = httpx2.HTTPTransport.handle_request

    def count_request(self: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
        step()
        return handle_request(self, request)

    httpx2.HTTPTransport.handle_request = count_request  # type: ignore[method-assign]  # of this process alone
    constants.ENDPOINT = endpoint
    constants.HF_HUB_DISABLE_XET = True
    os.environ["HF_TOKEN"] = TOKEN
    try:
        main(arguments)
    finally:
        if killer.counted is not None:
            killer.counted.write_text(str(next(numbers)))
