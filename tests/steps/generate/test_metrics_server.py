"""What Prometheus finds at /metrics while a shard is made."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.metrics_server import (
    metrics_port,
    serve_metrics,
)
from imagekiln.steps.generate.start import generate
from imagekiln.steps.local import run as run_job
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.stats import ShardStats, StageSeconds
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.metrics import Series, free_port, is_served, parse, scrape, value
from tests.runs import DRAWABLE, PROMPTS, UNDRAWABLE, job, planned, stats_of, write_prompts

MEASURED_STAGES = ("load", "text", "denoise", "decode", "safety", "copy", "encode", "write")


class ScrapingProgress(NoProgress):
    """Reads the metrics whenever a part is committed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.scrapes: list[Series] = []
        self.events: list[str] = []

    def add_committed(self, images: int) -> None:  # noqa: ARG002  # as every progress has it
        self.scrapes.append(parse(scrape(self.port)))

    def show_event(self, name: str, sentence: str) -> None:  # noqa: ARG002  # for programs
        self.events.append(sentence)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port on which metrics are served."""
    number = free_port()
    monkeypatch.setenv("IMAGEKILN_METRICS_PORT", str(number))
    yield number
    assert not is_served(number)


@pytest.fixture
def run(tmp_path: Path) -> PlanResult:
    """A planned run of one shard with parts of 4, 4 and 2 images, of which one cannot be drawn."""
    rows: list[dict[str, object]] = [{**DRAWABLE, **row} for row in PROMPTS[:10]]
    rows[9] |= UNDRAWABLE
    return planned(tmp_path, str(tmp_path / "out"), rows, shard={"images": 100})


def test_metrics_of_a_shard_add_up_to_its_statistics(
    run: PlanResult, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEKILN_ATTEMPT", "2")
    monkeypatch.setenv("IMAGEKILN_PROFILE", "h100")
    progress = ScrapingProgress(port)
    stats = generate(run.uri, 0, progress)
    assert stats is not None
    last = progress.scrapes[-1]

    assert value(last, "images_total", status="ok") == 9
    assert value(last, "images_total", status="failed") == 1
    assert value(last, "images_total", status="blank") == 0
    assert value(last, "parts_total", result="committed") == stats.parts == 3
    assert value(last, "shard_images_planned") == value(last, "shard_images_done") == 10
    assert value(last, "storage_errors_total", operation="write") == 0
    assert value(last, "oom_halvings_total") == value(last, "storage_retries_total") == 0
    assert _stage_sums(last) == pytest.approx(_stages(stats.seconds))
    busy = value(last, "device_busy_seconds_total", device="cpu")
    assert busy == pytest.approx((stats.busy_share or 0) * stats.working_seconds, rel=0.05)
    info = {
        "run": run.plan.run_id,
        "job": "tiny",
        "shard": "0",
        "attempt": "2",
        "model": run.plan.job.model.id,
        "profile": "h100",
    }
    assert value(last, "shard_info", **info) == 1


@pytest.mark.slow
def test_metrics_of_several_processes_are_added_up(tmp_path: Path, port: int) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet", PROMPTS)
    progress = ScrapingProgress(port)
    result = run_job(job(prompts, str(tmp_path / "out")), progress, Stop(), gpus=2)
    last = progress.scrapes[-1]

    store = open_store(result.uri)
    shards = [stats for number in range(3) if (stats := stats_of(store.uri, number))]
    assert value(last, "images_total", status="ok") == result.summary.ok == 20
    assert value(last, "parts_total", result="committed") == _parts(shards) == 5
    assert value(last, "shard_images_planned") == value(last, "shard_images_done") == 20
    drawn = sum((stats.seconds for stats in shards), StageSeconds())
    assert _stage_sums(last) == pytest.approx(_stages(drawn))


def _parts(shards: list[ShardStats]) -> int:
    return sum(stats.parts for stats in shards)


def _stages(seconds: StageSeconds) -> dict[str, float]:
    times = {stage: getattr(seconds, stage) for stage in MEASURED_STAGES}
    return {stage: duration for stage, duration in times.items() if duration}


def _stage_sums(series: Series) -> dict[str, float]:
    return {
        dict(labels)["stage"]: amount
        for (name, labels), amount in series.items()
        if name == "imagekiln_stage_seconds_sum"
    }


def test_counts_of_a_worker_that_ended_stay(run: PlanResult, port: int) -> None:
    code = (
        "from imagekiln.steps.generate.metrics_server import count_in_worker; count_in_worker(); "
        "from imagekiln.steps.runtime.metrics import IMAGES; IMAGES.add(3, status='ok'); "
        "import os; os.kill(os.getpid(), 9)"
    )
    with serve_metrics(NoProgress(), run.plan, in_workers=True) as variables:
        environment = {**os.environ, **variables}
        subprocess.run([sys.executable, "-c", code], env=environment, check=False)
        series = parse(scrape(port))
    assert value(series, "images_total", status="ok") == 3


def test_port_that_is_taken_costs_the_metrics_and_nothing_else(run: PlanResult, port: int) -> None:
    progress = ScrapingProgress(port)
    with serve_metrics(NoProgress(), run.plan), serve_metrics(progress, run.plan):
        pass
    (event,) = progress.events
    assert event.startswith(f"No metrics are served: port {port} cannot be used (")


@pytest.mark.parametrize("text", ["metrics", "-1", "70000"])
def test_what_is_no_port_is_a_mistake(text: str) -> None:
    with pytest.raises(BadInput, match="which is no port"):
        metrics_port({"IMAGEKILN_METRICS_PORT": text})
