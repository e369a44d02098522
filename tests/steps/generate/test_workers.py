"""Workers that fail, are lost, or are asked to end. tests/slow has some that draw."""

import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent
from types import SimpleNamespace
from typing import cast

import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate import workers as worker_pool
from imagekiln.steps.generate.workers import (
    choose_environments,
    gpu_environments,
    make_shards,
    split_work,
)
from imagekiln.steps.job.reader import read_job
from imagekiln.steps.local import preview
from imagekiln.steps.local import run as run_job
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runtime.machine import available_cpus
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests.runs import planned

# Real workers, but for what they do with a unit: BODY.
WORKER_CODE = """
import os, signal, sys, time, types
from pathlib import Path
sys.path[:] = {path!r}
from imagekiln.steps.errors import BadInput, TryAgain
folder = Path(FOLDER)

def wait_until(is_true):
    began = time.monotonic()
    while not is_true():
        assert time.monotonic() < began + 60
        time.sleep(0.01)

def generate_shard(store, plan, shard, model, progress, stop, *, parts, record):
    unit = "%d-%d" % (shard, parts.start)
    with (folder / "begun").open("a") as file:
        file.write(unit + " ")
    BODY
    for part in range(parts.start, parts.stop):
        (folder / ("made-%d-%d" % (shard, part))).touch(exist_ok=False)

def replace(name, **content):
    sys.modules["imagekiln.steps.generate." + name] = types.SimpleNamespace(**content)

model = types.SimpleNamespace(close=lambda: None)
replace("step", generate_shard=generate_shard, LazyDenoiser=lambda *_: model)
from imagekiln.steps.generate.workers import run_worker
run_worker({descriptor})
"""
SHARDS = 3
PARTS = 2
ALL_PARTS = {f"{shard}-{part}" for shard in range(SHARDS) for part in range(PARTS)}


class _Watch(NoProgress):
    """Counts images, keeps what is shown, and requests a stop by `at_second` once two are drawn."""

    def __init__(self) -> None:
        self.stop = Stop()
        self.at_second: Callable[[], None] | None = None
        self.drawn = 0
        self.committed = 0
        self.shown = list[str]()

    def add_drawn(self, images: int) -> None:
        self.drawn += images
        if self.drawn == 2 and self.at_second is not None:
            self.at_second()

    def add_committed(self, images: int) -> None:
        self.committed += images

    def show_event(self, name: str, sentence: str) -> None:  # noqa: ARG002  # for programs
        self.shown.append(sentence)


class _Run:
    """A planned run of three shards of two parts, made by workers that do as they are told."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.watch = _Watch()
        rows = [{"prompt": str(place)} for place in range(SHARDS * PARTS)]
        one = {"images": 1}
        sizes = {"shard": {"images": PARTS}, "part": one, "batch": one}
        result = planned(folder, str(folder / "out"), rows, **sizes)
        self.uri = result.uri
        self.plan = result.plan
        self._patch = patch

    def make(self, body: str, workers: int = 2) -> None:
        """Make the run; `body` is what a worker does before its unit counts as made."""
        lines = indent(dedent(body), "    ").strip()
        code = WORKER_CODE.replace("FOLDER", repr(str(self.folder))).replace("BODY", lines)
        self._patch.setattr(worker_pool, "WORKER_CODE", code)
        environments: list[dict[str, str]] = [{}] * workers
        run = open_run(self.uri)
        make_shards(run, self.plan, range(SHARDS), environments, self.watch, self.watch.stop)

    @property
    def made(self) -> set[str]:
        """The parts that were made, as SHARD-PART."""
        return {path.name.removeprefix("made-") for path in self.folder.glob("made-*")}

    @property
    def begun(self) -> list[str]:
        """The units that were begun, as SHARD-PART of their first parts."""
        return (self.folder / "begun").read_text(encoding="utf-8").split()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Run:
    return _Run(tmp_path, monkeypatch)


def test_where_one_worker_fails_another_ends_with_the_part_that_it_is_at(
    run: _Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "END_SECONDS", 60.0)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="a bug"):
        run.make(
            """
            if shard == 0:
                wait_until((folder / "other").exists)
                raise RuntimeError("a bug")
            with stop.deferred():
                (folder / "other").touch()
                wait_until(lambda: stop.requested_at is not None)
            """
        )
    assert time.monotonic() - began < 60
    assert run.made


def test_where_all_workers_are_lost_the_exit_code_is_75(run: _Run) -> None:
    message = r"images are missing.*exit code 7.*to resume"
    with pytest.raises(TryAgain, match=message) as error:
        run.make("os._exit(7)")
    assert error.value.exit_code == 75
    assert len(run.begun) == 2


def test_mistake_that_a_worker_finds_ends_all_and_is_told_as_one(run: _Run) -> None:
    with pytest.raises(BadInput, match=r"^the model is odd\. Correct it\.$"):
        run.make('raise BadInput("the model is odd. Correct it.")', workers=1)
    assert len(run.begun) == 1


def test_another_worker_makes_the_unit_of_one_that_was_killed(run: _Run) -> None:
    run.make(
        """
        if unit == "0-0" and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert run.made == ALL_PARTS
    assert run.begun.count("0-0") == 2


def test_unit_that_ends_each_worker_is_given_up_and_others_are_made(run: _Run) -> None:
    with pytest.raises(TryAgain, match=r"Worker . was killed, perhaps because memory ran out"):
        run.make(
            """
            progress.add_drawn(1)
            if unit == "0-0":
                os.kill(os.getpid(), signal.SIGKILL)
            """,
            workers=4,
        )
    assert run.begun.count("0-0") == 3
    assert run.made >= {part for part in ALL_PARTS if part[0] != "0"}
    assert "Other processes make what is missing." in run.watch.shown[0]


def test_workers_that_may_end_after_their_parts_begin_no_other(run: _Run) -> None:
    run.watch.at_second = run.watch.stop.request_after_part
    with pytest.raises(TryAgain, match=r"was stopped\. Run the same command again to resume"):
        run.make("progress.add_drawn(1); wait_until(lambda: stop.waits_for_part)")
    assert {part[0] for part in run.made} == {part[0] for part in run.begun} == {"0", "1"}


def test_workers_that_are_to_stop_are_asked_by_a_signal(
    run: _Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "END_SECONDS", 60.0)
    run.watch.at_second = run.watch.stop.request
    with pytest.raises(TryAgain, match=r"was stopped\. Run the same command again to resume"):
        run.make("progress.add_drawn(1)\nwhile True: time.sleep(0.01)")
    assert run.watch.stop.requested_at is not None
    assert time.monotonic() - run.watch.stop.requested_at < 60
    assert not run.made


def test_worker_that_does_not_end_when_it_is_asked_to_is_killed(
    run: _Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "END_SECONDS", 2.0)
    run.watch.at_second = run.watch.stop.request
    with pytest.raises(TryAgain, match=r"was stopped\. Run the same command again to resume"):
        run.make(
            """
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            (folder / ("process-%d" % os.getpid())).touch()
            progress.add_drawn(1)
            time.sleep(600)
            """
        )
    numbers = [path.name.removeprefix("process-") for path in run.folder.glob("process-*")]
    assert len(numbers) == 2
    assert not any(Path("/proc", number).exists() for number in numbers)


@pytest.mark.parametrize("parts", [[1], [7], [32], [32] * 20, [3, 1, 40]])
def test_work_is_split_into_smaller_units_toward_the_end(parts: list[int]) -> None:
    plan = cast("Plan", SimpleNamespace(part_count=lambda shard: parts[shard]))
    units = split_work(plan, range(len(parts)), 4)
    assert [(unit.shard, part) for unit in units for part in range(99)[unit.parts]] == [
        (shard, part) for shard, count in enumerate(parts) for part in range(count)
    ]
    assert len(units) >= min(4, sum(parts))
    assert units[-1].end_part - units[-1].first_part == 1


def test_each_worker_has_a_gpu_or_a_share_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    job = read_job("bundled:demo.yaml", ["device=cpu"])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert choose_environments(job, None) == [{}]
    threads = str(max(1, available_cpus() // 3))
    assert choose_environments(job, 3) == [{"OMP_NUM_THREADS": threads}] * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    names = ["GPU-3f8a", "2"]
    assert gpu_environments(names) == [{"CUDA_VISIBLE_DEVICES": name} for name in names]


def test_more_gpus_than_there_are_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = read_job("bundled:demo.yaml", ["device=auto"])
    assert choose_environments(job, 1) == [{}]
    with pytest.raises(BadInput, match=r"--gpus 3: 0 GPUs visible here\. .*device: cpu"):
        choose_environments(job, 3)


@pytest.mark.parametrize("command", [run_job, preview])
def test_device_that_is_not_here_is_a_mistake_before_anything_is_planned(
    command: Callable[[object], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = read_job("bundled:demo.yaml", ["device=cuda", f"output={tmp_path / 'out'}"])
    with pytest.raises(BadInput, match=r"'cuda' (is not there|cannot be used)"):
        command(job)
    assert not (tmp_path / "out").exists()
