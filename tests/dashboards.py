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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import matplotlib.dates as dates
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from tests.prometheus import DASHBOARDS, Prometheus, plain_config, program, prometheus

DOCS = Path(__file__).parents[1] / "docs"
NIGHT = datetime(2026, 11, 23, 1, 30, tzinfo=UTC).timestamp()
END = NIGHT + 4.5 * 3600
MINUTE = 60
DAY = 86400
NIGHTS = 90
GPUS = 8
PLANNED = 200_000
SLOW_POD = 5
SPANS = {"run": 5 * 3600, "gpus": 5 * 3600, "cost": 30 * DAY, "schedule": NIGHTS * DAY}
JOBS = {"postcards": 1.0, "posters": 0.45}
COLORS = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d"]
BACKGROUND, PANEL, TEXT, MUTED = "#111217", "#181b1f", "#d8d9da", "#8e8e8e"
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
            end = start + hours * 3600
            end -= end % MINUTE
            failed = rng.random() < 0.04
            simulate_end(samples, job, end, share * (0.3 if failed else 1), hours, failed, rng)
            for at in np.arange(start, start + DAY, 5 * MINUTE):
                success = end if at >= end and not failed else success
                latest = {"job": job}
                if success:
                    name = "imagekiln:run_last_success:timestamp_seconds"
                    samples.add(float(at), name, success, **latest)
                samples.add(float(at), "imagekiln:job_limit:run_seconds", 8 * 3600, **latest)
                if at >= end:
                    name = "argo_workflows_imagekiln_run_duration_seconds"
                    samples.add(float(at), name, hours * 3600, **latest)
                name = "imagekiln:schedule_last_start:timestamp_seconds"
                samples.add(float(at), name, start, **latest)


def simulate_end(
    samples: Samples,
    job: str,
    end: float,
    share: float,
    hours: float,
    failed: bool,
    rng: np.random.Generator,
) -> None:
    """The end of a night: counted in its last minute."""
    status = "Failed" if failed else "Succeeded"
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
    """A minute of a pod."""
    elapsed = at - NIGHT
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
    samples.add(at, "imagekiln_shard_images_done", 2360 * (elapsed % 1800) / 1800, **pod)
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
    samples.add(at, "imagekiln_oom_halvings_total", elapsed // 7200, **pod)
    samples.add(at, "imagekiln_storage_retries_total", (elapsed / 600) ** 1.3, **pod)
    for operation in ("read", "write"):
        name = "imagekiln_storage_errors_total"
        samples.add(at, name, 0, operation=operation, **pod)
    samples.add(at, "imagekiln_parts_total", elapsed / 49, result="committed", **pod)
    samples.add(at, "imagekiln_parts_total", elapsed // 5400, result="already_there", **pod)


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
    panel: Mapping[str, object],
    box: tuple[float, float, float, float],
    span: float,
) -> None:
    """Draw a panel: a figure, a table or lines."""
    left, bottom, width, height = box
    frame = figure.add_axes(box, facecolor=PANEL)
    frame.set(xticks=[], yticks=[])
    frame.spines[:].set_visible(False)
    inches = height * figure.get_figheight()
    top = 1 - 0.2 / inches
    frame.text(0.01, top, str(panel["title"]), color=TEXT, size=8.5, va="center", weight="bold")
    targets = panel["targets"]
    assert isinstance(targets, list)
    queries = [(expand(target["expr"], span), target.get("legendFormat", "")) for target in targets]
    unit = str(panel["fieldConfig"]["defaults"]["unit"])  # type: ignore[index]
    if panel["type"] == "stat":
        value = last_value(server, queries[0][0])
        frame.text(
            0.5, 0.4, format_value(value, unit), color=COLORS[0], size=17, ha="center", va="center"
        )
    elif panel["type"] == "table":
        draw_table(frame, server.query(queries[0][0], END), unit, top)
    else:
        inner = (left + 0.035, bottom + 0.28 / figure.get_figheight() * 1.9, width - 0.042)
        axes = figure.add_axes((*inner, height - 0.95 / figure.get_figheight()), facecolor=PANEL)
        draw_lines(axes, server, queries, panel, span, unit)


def draw_lines(
    axes: Axes,
    server: Prometheus,
    queries: list[tuple[str, str]],
    panel: Mapping[str, object],
    span: float,
    unit: str,
) -> None:
    """Draw the series of a panel: lines, stacked areas or bars."""
    custom = panel["fieldConfig"]["defaults"].get("custom", {})  # type: ignore[index]
    bars = custom.get("drawStyle") == "bars"
    step = DAY if bars else max(MINUTE, span / 200)
    base: dict[float, float] = {}
    number = 0
    for expression, legend in queries:
        for series in server.query_range(expression, END - span, END, step):
            points = [(float(at), float(value)) for at, value in series["values"]]  # type: ignore[attr-defined]
            points = [(at, value) for at, value in points if math.isfinite(value)]
            times = [datetime.fromtimestamp(at, UTC) for at, _ in points]
            label = name_series(legend, series["metric"])  # type: ignore[arg-type]
            color = COLORS[number % len(COLORS)]
            number += 1
            if "stacking" not in custom:
                axes.plot(times, [value for _, value in points], color=color, lw=1, label=label)
                continue
            bottoms = [base.get(at, 0.0) for at, _ in points]
            tops = [low + value for low, (_, value) in zip(bottoms, points, strict=True)]
            if bars:
                heights = [value for _, value in points]
                width = 0.8
                axes.bar(times, heights, width, bottom=bottoms, color=color, label=label)
            else:
                axes.fill_between(times, bottoms, tops, color=color, alpha=0.45, lw=0, label=label)
            base |= {at: high for (at, _), high in zip(points, tops, strict=True)}
    style(axes, unit, span, number)


def style(axes: Axes, unit: str, span: float, series: int) -> None:
    """Make axes look like a panel's."""
    axes.spines[:].set_visible(False)
    axes.grid(color="#2c3235", lw=0.5)
    axes.tick_params(colors=MUTED, labelsize=6.5, length=0, pad=2)
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M" if span < DAY else "%m-%d"))
    axes.xaxis.set_major_locator(dates.AutoDateLocator(maxticks=6))
    axes.yaxis.set_major_formatter(lambda value, _: format_value(value, unit))
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.margins(x=0)
    if series:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.04, -0.1),
            ncols=5,
            fontsize=6,
            labelcolor=MUTED,
            frameon=False,
            handlelength=1,
            columnspacing=1,
        )
        handles, labels = axes.get_legend_handles_labels()
        if series > 5:
            axes.legend(
                handles[:4],
                [*labels[:3], f"and {series - 3} more"],
                loc="upper left",
                bbox_to_anchor=(-0.04, -0.1),
                ncols=4,
                fontsize=6,
                labelcolor=MUTED,
                frameon=False,
                handlelength=1,
                columnspacing=1,
            )


def draw_table(axes: Axes, samples: list[dict[str, object]], unit: str, top: float) -> None:
    """Draw the first rows of a table."""
    rows = [{**sample["metric"], "Value": sample["value"][1]} for sample in samples]  # type: ignore[dict-item, index]
    columns = [name for name in rows[0] if name != "__name__"]
    for row_number, row in enumerate([dict(zip(columns, columns, strict=True)), *rows[:9]]):
        for column, name in enumerate(columns):
            text = str(row.get(name, ""))
            if row_number and name == "Value":
                text = format_value(float(text), unit)
            axes.text(
                0.01 + column / len(columns),
                top - (row_number + 1) * 0.09,
                text[:30],
                color=TEXT if row_number else COLORS[6],
                size=7,
                va="center",
            )


def expand(expression: str, span: float) -> str:
    """The query as Grafana sends it."""
    values = {
        "$__rate_interval": "5m",
        "$__range_s": f"{span:.0f}",
        "$__range": f"{span:.0f}s",
        "$job": "postcards" if span > 30 * DAY else ".*",
        "$run": ".*",
    }
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    # Simulated time ends in the past.
    return re.sub(r"\btime\(\)", "timestamp(vector(1))", expression)


def last_value(server: Prometheus, expression: str) -> float:
    """The value of a panel that shows one."""
    samples = server.query(expression, END)
    return float(samples[0]["value"][1]) if samples else math.nan  # type: ignore[index]


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
        return f"{value / 3600:.1f} h" if value >= 3600 else f"{value:.3g} s"
    suffix = {"bytes": "B", "watt": " W", "celsius": " °C", "h": " h", "kwatth": " kWh"}.get(
        unit, ""
    )
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "K")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'K' else size):.3g} {letter}{suffix}"
    return f"{value:.3g}{suffix}"


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
        with prometheus(folder, config, f"--storage.tsdb.retention.time={age}d") as server:
            for file in DASHBOARDS:
                yield draw(server, file)


if __name__ == "__main__":
    main()
