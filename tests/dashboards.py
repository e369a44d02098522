"""Draw the dashboards for docs/monitoring.md: `python -m tests.dashboards`.

The panels' own queries, asked of a Prometheus with a simulated cluster: three months of nights, of
which a few fail, and tonight's run on eight GPUs, of which one is slow. What rules record is
simulated, too: `tests/slow/test_monitoring.py` tries rules and panels with a real process.
"""

import json
import math
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib.dates as dates
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from tests.prometheus import DASHBOARDS, Prometheus, Sample, plain_config, program, prometheus

DOCS = Path(__file__).parents[1] / "docs"
NIGHT = datetime(2026, 11, 23, 1, 30, tzinfo=UTC).timestamp()
END = NIGHT + 4.4 * 3600
MINUTE = 60
DAY = 86400
NIGHTS = 90
GPUS = 8
PLANNED = 200_000
SLOW_POD = 5
MAX_LEGEND = 4
MAX_ROWS = 9
SPANS = {"run": 5 * 3600, "gpus": 5 * 3600, "cost": 30 * DAY, "schedule": NIGHTS * DAY}
JOBS = {"postcards": 1.0, "posters": 0.45}
COLORS = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d"]
STATUS_COLORS = {
    "ok": "#73bf69",
    "Succeeded": "#73bf69",
    "blank": "#ff9830",
    "filtered": "#fade2a",
    "failed": "#f2495c",
    "Failed": "#f2495c",
}
SUFFIXES = {"bytes": "B", "watt": " W", "celsius": " °C", "h": " h", "kwatth": " kWh"}
BACKGROUND = "#111217"
PANEL = "#181b1f"
TEXT = "#d8d9da"
MUTED = "#8e8e8e"
Labels = Mapping[str, str]


@dataclass(slots=True)
class Samples:
    """Simulated metrics: by name and labels, values at seconds since 1970."""

    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, at: float, name: str, value: float, **labels: str) -> None:
        """Add a sample."""
        pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
        self.series.setdefault(f"{name}{{{pairs}}}" if pairs else name, []).append((at, value))

    def write(self, file: Path) -> None:
        """Write them as OpenMetrics, whose series are in order."""
        with file.open("w", encoding="utf-8") as stream:
            for name in sorted(self.series):
                for at, value in self.series[name]:
                    stream.write(f"{name} {value:.6g} {at:.0f}\n")
            stream.write("# EOF\n")


def simulate() -> Samples:
    """Three months of nights, and tonight so far."""
    samples = Samples()
    rng = np.random.default_rng(7)
    simulate_nights(samples, rng)
    for at in np.arange(END - 5 * 3600, END + 1, MINUTE):
        simulate_gpus(samples, float(at), rng)
        if at >= NIGHT:
            simulate_run(samples, float(at), rng)
    return samples


def simulate_nights(samples: Samples, rng: np.random.Generator) -> None:
    """The nights before this one: what each made, took and cost."""
    for job, share in JOBS.items():
        success = 0.0
        for night in range(NIGHTS, 0, -1):
            start = NIGHT - night * DAY
            hours = (5.2 + 0.8 * rng.random()) * (1 + 0.002 * (NIGHTS - night))
            end = start + hours * 3600 // MINUTE * MINUTE
            failed = rng.random() < 0.04
            status = "Failed" if failed else "Succeeded"
            simulate_end(samples, job, end, share * (0.3 if failed else 1), hours, status, rng)
            simulate_day(samples, job, start, end, success, end if not failed else success)
            success = success if failed else end
        simulate_day(samples, job, NIGHT, END + DAY, success, success)


def simulate_day(
    samples: Samples, job: str, start: float, end: float, before: float, after: float
) -> None:
    """What is remembered of a job for a day: `before` its night ended, and `after`."""
    for moment in np.arange(start, start + DAY, 5 * MINUTE):
        at = float(moment)
        values = {
            "imagekiln:run_last_success:timestamp_seconds": after if at >= end else before,
            "imagekiln:job_limit:run_seconds": 8 * 3600,
            "argo_workflows_imagekiln_run_duration_seconds": end - start if at >= end else 0,
            "imagekiln:schedule_last_start:timestamp_seconds": start,
        }
        for name, value in values.items():
            if value:
                samples.add(at, name, value, job=job)


def simulate_end(
    samples: Samples,
    job: str,
    end: float,
    share: float,
    hours: float,
    status: str,
    rng: np.random.Generator,
) -> None:
    """The end of a night: counted in its last minute."""
    samples.add(end, "imagekiln:runs:increase1m", 1, job=job, status=status)
    planned = PLANNED * share * (0.9 + 0.2 * rng.random())
    shares = {"blank": 0.001, "filtered": 0.003, "failed": 0.002 + 0.004 * rng.random()}
    for name, part in {"ok": 1 - sum(shares.values()), **shares}.items():
        samples.add(end, "imagekiln:run_images:increase1m", planned * part, job=job, status=name)
    gpu_seconds = hours * 3600 * GPUS * share
    uses = {"loading": 0.03, "idle": 0.04 + 0.02 * rng.random(), "repeated": 0.02 * rng.random()}
    for use, part in {"drawing": 1 - sum(uses.values()), **uses}.items():
        name = "imagekiln:run_gpu_seconds:increase1m"
        samples.add(end, name, gpu_seconds * part, job=job, use=use)
    samples.add(end, "imagekiln:run_cost:increase1m", gpu_seconds / 3600 * 2.49, job=job)


def simulate_run(samples: Samples, at: float, rng: np.random.Generator) -> None:
    """A minute of tonight's run."""
    elapsed = at - NIGHT
    of_run = {"namespace": "imagekiln", "job": "postcards", "run": "2026-11-23T01-30"}
    ramp = min(1.0, elapsed / 1200)
    rate = 10.5 * ramp * (1 + 0.03 * rng.standard_normal())
    for status, share in (("ok", 0.994), ("filtered", 0.003), ("blank", 0.001), ("failed", 0.002)):
        samples.add(at, "imagekiln:images:rate5m", rate * share, **of_run, status=status)
    done = 10.5 * max(0.0, elapsed - 600 * ramp)
    samples.add(at, "imagekiln:run_images_done", done, **of_run)
    samples.add(at, "imagekiln:run_images_planned", PLANNED, **of_run)
    samples.add(at, "imagekiln:run_seconds_left", (PLANNED - done) / max(rate, 1), **of_run)
    phases = {"Running": GPUS * ramp, "Pending": GPUS * (1 - ramp)}
    for phase, count in phases.items():
        samples.add(at, "argo_workflows_pods_gauge", round(count), phase=phase)
    for bound in (300, 900, 1800, 3600):
        count = elapsed / 225 * (bound / 3600) ** 0.5
        name = "argo_workflows_imagekiln_shard_seconds_bucket"
        samples.add(at, name, count, job="postcards", status="Succeeded", le=str(bound))
        if bound == 3600:
            samples.add(at, name, count, job="postcards", status="Succeeded", le="+Inf")
    for number in range(round(GPUS * ramp)):
        simulate_pod(samples, at, number, of_run, rng)


def simulate_pod(
    samples: Samples, at: float, number: int, of_run: Labels, rng: np.random.Generator
) -> None:
    """A minute of a pod, whose counters begin with it."""
    elapsed = (at - NIGHT) % 1800
    shard = shard_of(number, at)
    pod = {"namespace": "imagekiln", "pod": pod_of(number, at)}
    samples.add(
        at,
        "imagekiln:pod:info",
        1,
        **of_run,
        pod=pod["pod"],
        shard=str(shard),
        attempt="0",
        model="stabilityai/sdxl-base-1.0",
        profile="h100",
    )
    samples.add(at, "imagekiln_shard_images_done", 2360 * elapsed / 1800, **pod)
    samples.add(at, "imagekiln_shard_images_planned", 2360, **pod)
    busy = 0.6 if number == SLOW_POD else 0.95
    samples.add(at, "imagekiln_device_busy_seconds_total", busy * elapsed, device="0", **pod)
    stages = {"denoise": 0.8, "decode": 0.12, "text": 0.03, "encode": 0.35, "write": 0.15}
    for stage, share in stages.items():
        name = "imagekiln_stage_seconds"
        samples.add(at, f"{name}_sum", share * busy * elapsed, stage=stage, **pod)
        for bound in (0.3, 1, 3, 10):
            count = elapsed * min(1.0, bound / (6 * share + 0.2))
            samples.add(at, f"{name}_bucket", count, stage=stage, le=str(bound), **pod)
        samples.add(at, f"{name}_bucket", elapsed, stage=stage, le="+Inf", **pod)
    drawn = 1.6 if number == SLOW_POD else 0.3 + 0.2 * rng.random()
    samples.add(at, "imagekiln_queue_items", drawn, queue="drawn", **pod)
    samples.add(at, "imagekiln_queue_items", drawn / 3, queue="encoded", **pod)
    for kind, size in (("allocated", 41e9), ("reserved", 52e9), ("limit", 80e9)):
        name = "imagekiln_device_memory_bytes"
        samples.add(at, name, size * (1 + 0.01 * rng.random()), device="0", kind=kind, **pod)
    samples.add(
        at, "imagekiln_oom_halvings_total", elapsed // 1000 if number == SLOW_POD else 0, **pod
    )
    samples.add(at, "imagekiln_storage_retries_total", (elapsed / 300) ** 1.3, **pod)
    for operation in ("read", "write"):
        name = "imagekiln_storage_errors_total"
        samples.add(at, name, 0, operation=operation, **pod)
    samples.add(at, "imagekiln_parts_total", elapsed / 49, result="committed", **pod)
    samples.add(at, "imagekiln_parts_total", elapsed // 1700, result="already_there", **pod)


def shard_of(number: int, at: float) -> int:
    """The shard that a GPU works on: each takes half an hour."""
    return number + GPUS * int((at - NIGHT) // 1800)


def pod_of(number: int, at: float) -> str:
    """The pod that has a GPU of ours."""
    return f"postcards-generate-{shard_of(number, at)}"


def simulate_gpus(samples: Samples, at: float, rng: np.random.Generator) -> None:
    """A minute of the fleet: the run's GPUs, two of another team, two that nobody has."""
    ramp = min(1.0, max(0.0, at - NIGHT) / 1200)
    for number in range(GPUS + 4):
        ours = number < round(GPUS * ramp)
        others = GPUS <= number < GPUS + 2
        busy = 0.62 if number == SLOW_POD else 0.96
        used = busy if ours else 0.35 if others else 0.0
        used = float(np.clip(used + 0.03 * rng.standard_normal(), 0, 1)) if used else 0.0
        gpu = {
            "hostname": f"node-{number // 4 + 1}",
            "gpu": str(number % 4),
            "modelName": "NVIDIA H100",
        }
        pod = {"namespace": "imagekiln", "pod": pod_of(number, at)} if ours else {}
        pod = {"namespace": "research", "pod": f"notebook-{number}"} if others else pod
        samples.add(at, "imagekiln:gpu:utilization", used, **gpu, **pod)
        memory = (52e9 if ours else 18e9 if others else 0.5e9) * (1 + 0.01 * rng.random())
        samples.add(at, "imagekiln:gpu:memory_used_bytes", memory, **gpu, **pod)
        samples.add(at, "imagekiln:gpu:power_watts", 75 + 560 * used, **gpu)
        warm = 34 + 36 * used + (10 if number == SLOW_POD else 0)
        samples.add(at, "imagekiln:gpu:temperature_celsius", warm, **gpu)
        hot = 0.2 if number == SLOW_POD and ramp == 1 else 0.0
        samples.add(at, "imagekiln:gpu:throttled:rate5m", hot, **gpu)
        samples.add(at, "imagekiln:gpu:xid", 0, **gpu)


def draw(server: Prometheus, file: Path) -> Path:
    """Draw a dashboard as a picture of a screen."""
    dashboard = json.loads(file.read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(14, height * 0.36 + 0.6), facecolor=BACKGROUND, dpi=100)
    figure.text(0.008, 1 - 0.3 / figure.get_figheight(), dashboard["title"], color=TEXT, size=14)
    for panel in panels:
        place = panel["gridPos"]
        unit = 1 / (height + 1.6)
        box = (
            place["x"] / 24 + 0.004,
            (height - place["y"] - place["h"]) * unit + 0.2 * unit,
            place["w"] / 24 - 0.008,
            (place["h"] - 0.3) * unit,
        )
        draw_panel(server, figure, panel, box, SPANS[file.stem])
    picture = DOCS / f"dashboard-{file.stem}.png"
    figure.savefig(picture, facecolor=BACKGROUND)
    with Image.open(picture) as image:
        image.convert("RGB").quantize(96).save(picture, optimize=True)
    return picture


def draw_panel(
    server: Prometheus,
    figure: Figure,
    panel: Mapping[str, Any],
    box: tuple[float, float, float, float],
    span: float,
) -> None:
    """Draw a panel: a figure, a table or lines."""
    left, bottom, width, height = box
    inch = 1 / figure.get_figheight()
    frame = figure.add_axes(box, facecolor=PANEL)
    frame.set(xticks=[], yticks=[])
    frame.spines[:].set_visible(False)
    top = 1 - 0.2 * inch / height
    frame.text(0.01, top, panel["title"], color=TEXT, size=8.5, va="center", weight="bold")

    targets = panel["targets"]
    queries = [(expand(target["expr"], span), target.get("legendFormat", "")) for target in targets]
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    if panel["type"] == "stat":
        text = format_value(last_value(server, queries[0][0]), unit)
        frame.text(0.5, 0.4, text, color=COLORS[0], size=17, ha="center", va="center")
    elif panel["type"] == "table":
        draw_table(frame, server.query(queries[0][0], END), unit, top)
    else:
        inner = (left + 0.035, bottom + 0.53 * inch, width - 0.042, height - 0.95 * inch)
        axes = figure.add_axes(inner, facecolor=PANEL)
        step = DAY if targets[0].get("interval") == "1d" else max(MINUTE, span / 200)
        draw_lines(axes, server, queries, defaults["custom"], span, unit, step)


def draw_lines(
    axes: Axes,
    server: Prometheus,
    queries: list[tuple[str, str]],
    custom: Mapping[str, object],
    span: float,
    unit: str,
    step: float,
) -> None:
    """Draw the series of a panel: lines, stacked areas or bars."""
    base: dict[float, float] = {}
    number = 0
    for expression, legend in queries:
        for series in server.query_range(expression, END - span, END, step):
            label = name_series(legend, series.labels)
            color = STATUS_COLORS.get(label, COLORS[number % len(COLORS)])
            draw_series(axes, series.points, base, custom, color, label)
            number += 1
    style(axes, unit, span, number)


def draw_series(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    base: dict[float, float],
    custom: Mapping[str, object],
    color: str,
    label: str,
) -> None:
    """Draw a series, on those before it where the panel stacks them."""
    finite = [(at, value) for at, value in points if math.isfinite(value)]
    times = [at / DAY for at, _ in finite]  # as matplotlib counts
    values = [value for _, value in finite]
    if "stacking" not in custom:
        axes.plot(times, values, color=color, lw=1, label=label)
        return

    bottoms = [base.get(at, 0.0) for at, _ in finite]
    tops = [low + value for low, value in zip(bottoms, values, strict=True)]
    if custom.get("drawStyle") == "bars":
        axes.bar(times, values, 0.8, bottom=bottoms, color=color, label=label)
    else:
        axes.fill_between(times, bottoms, tops, color=color, alpha=0.45, lw=0, label=label)
    base |= {at: high for (at, _), high in zip(finite, tops, strict=True)}


def style(axes: Axes, unit: str, span: float, series: int) -> None:
    """Make axes look like a panel's."""
    axes.spines[:].set_visible(False)
    axes.grid(color="#2c3235", lw=0.5)
    axes.tick_params(colors=MUTED, labelsize=6.5, length=0, pad=2)
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M" if span < DAY else "%m-%d"))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(dates.AutoDateLocator(maxticks=6))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_formatter(lambda value, _: format_value(value, unit))
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.margins(x=0)
    handles, labels = axes.get_legend_handles_labels()
    if series > MAX_LEGEND:
        handles = handles[:MAX_LEGEND]
        labels = [*labels[: MAX_LEGEND - 1], f"and {series - MAX_LEGEND + 1} more"]
    axes.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(-0.04, -0.1),
        ncols=MAX_LEGEND,
        fontsize=6,
        labelcolor=MUTED,
        frameon=False,
        handlelength=1,
        columnspacing=1,
    )


def draw_table(axes: Axes, samples: Sequence[Sample], unit: str, top: float) -> None:
    """Draw the first rows of a table."""
    columns = [name for name in samples[0].labels if name != "__name__"]
    rows = [[*columns, "Value"]]
    for sample in samples[:MAX_ROWS]:
        cells = [sample.labels.get(name, "") for name in columns]
        rows.append([*cells, format_value(sample.value, unit)])
    for number, row in enumerate(rows):
        for column, text in enumerate(row):
            axes.text(
                0.01 + column / len(row),
                top - (number + 1) * 0.09,
                text[:30],
                color=TEXT if number else COLORS[6],
                size=7,
                va="center",
            )


def expand(expression: str, span: float) -> str:
    """The query as Grafana sends it."""
    values = {
        "$__rate_interval": "2m",
        "$__range_s": f"{span:.0f}",
        "$__range": f"{span:.0f}s",
        "$job": "postcards" if span > 30 * DAY else ".*",
        "$run": ".*",
    }
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    return expression


def last_value(server: Prometheus, expression: str) -> float:
    """The value of a panel that shows one."""
    samples = server.query(expression, END)
    return samples[0].value if samples else math.nan


def name_series(legend: str, labels: Labels) -> str:
    """A series' name in the legend."""
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), legend).strip()


def format_value(value: float, unit: str) -> str:
    """A value with its unit, as Grafana shortens it."""
    if not math.isfinite(value):
        return "-"
    if unit == "percentunit":
        return f"{value:.0%}" if value >= 0.1 or value == 0 else f"{value:.1%}"
    if unit == "s":
        return format_seconds(value)
    suffix = SUFFIXES.get(unit, "")
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "K")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'K' else size):.3g} {letter}{suffix}"
    return f"{value:,.0f}{suffix}" if abs(value) >= 100 else f"{value:.3g}{suffix}"


def format_seconds(value: float) -> str:
    """A duration, in the unit that makes it short."""
    for size, unit in ((3600, "h"), (MINUTE, "min")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.2g} s"


def main() -> None:
    """Draw all of them."""
    for picture in pictures():
        print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")  # noqa: T201


def pictures() -> Iterator[Path]:
    """Draw each dashboard."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulate().write(folder / "samples.txt")
        command = [program("promtool"), "tsdb", "create-blocks-from"]
        command += ["--max-block-duration=1000h", "openmetrics"]
        (folder / "data").mkdir()
        subprocess.run(
            [*command, folder / "samples.txt", folder / "data"], check=True, capture_output=True
        )
        config = plain_config({})
        config["rule_files"] = []
        config["scrape_configs"] = []
        age = int((time.time() - NIGHT) / DAY) + NIGHTS + 30
        retention = f"--storage.tsdb.retention.time={age}d"
        for file in DASHBOARDS:
            # A pod that has ended is gone at once: Prometheus marks it, a file of samples cannot.
            lookback = MINUTE - 1 if SPANS[file.stem] < DAY else 5 * MINUTE
            options = [retention, f"--query.lookback-delta={lookback}s"]
            with prometheus(folder, config, *options) as server:
                yield draw(server, file)


if __name__ == "__main__":
    main()
