"""Where a run's time went, stage by stage, and what limited its throughput."""

from dataclasses import dataclass
from typing import Literal

from imagekiln.steps.aggregate.report.charts import ShareRow
from imagekiln.steps.aggregate.throughput import DeviceUsage, Starts
from imagekiln.steps.runs.start_times import format_start
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.figures import format_count, format_duration, format_percent

SEQUENTIAL_STAGES = {
    "load": "load the model",
    "compile": "compile",
    "text": "encode texts",
    "denoise": "denoise",
    "decode": "decode",
    "wait": "wait",
    "rest": "start and end",
}
CONCURRENT_STAGES = {
    "safety": "check safety",
    "score": "score",
    "encode": "encode and hash",
    "write": "write parts",
}

MIN_LOST_SHARE = 0.1  # of the time: what costs less is not worth a change
MIN_BUSY_SHARE = 0.8  # of the time: a device that computes for less is not the limit
BottleneckKind = Literal[
    "device", "launching", "encoding", "storage", "loading", "compiling", "texts", "ends"
]
ADVICE: dict[BottleneckKind, str] = {
    "encoding": "Give the pods more CPU cores, or choose a faster encoding.",
    "storage": "Move the output closer to the pods, or choose an encoding with smaller files.",
    "loading": "Make shards larger, or keep the model in a cache volume.",
    "compiling": "Make shards larger, or keep the compiled code; for a few images, set "
    "speed.compile to off.",
    "texts": "Group rows with the same prompt, or ask for several images of each.",
    "ends": "Make shards larger, and parts smaller.",
    "launching": "Draw more images in a batch, or let the model be compiled.",
}

# Of a run of one shard, only their size would shorten them: its pages do not speak of it.
SHARD_SIZE_BOTTLENECKS = ("loading", "compiling", "ends")


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """The devices' seconds by stage, in this order; the stages do not overlap.

    `text` counts the texts that were not encoded during a batch, `wait` the time spent waiting for
    encoding or writing, and `rest` what is left: before the first image, after the last, between.
    """

    load: float
    compile: float
    text: float
    denoise: float
    decode: float
    wait: float
    rest: float


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Shares of the shards' wall time.

    The `sequential` ones add up to all of it; the `concurrent` ones overlap them.
    """

    sequential: tuple[ShareRow, ...]
    concurrent: tuple[ShareRow, ...]


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limited a run; `sentence` and `advice` are for the report."""

    kind: BottleneckKind
    sentence: str
    advice: str


@dataclass(frozen=True, slots=True)
class _Loss:
    """Seconds in which the device drew nothing, and a sentence for their share of the time."""

    kind: BottleneckKind
    seconds: float
    sentence: str


def break_down_time(seconds: StageSeconds, usage: DeviceUsage) -> TimeBreakdown:
    """What the devices did, one thing after another."""
    drawing = seconds.denoise + seconds.decode
    text = seconds.text
    if usage.busy is not None:
        # Of the time in which the device computed, what was not drawing was encoding texts.
        computing = usage.busy * (seconds.total - seconds.load)
        text = min(seconds.text, max(0.0, computing - drawing - sum(seconds.passes.values())))

    passes = sum(seconds.passes.values())
    left = max(0.0, seconds.total - seconds.load - seconds.compile - text - drawing - passes)
    # The device may still be drawing a batch while the one before waits.
    wait = min(seconds.denoise_waits, left)
    return TimeBreakdown(
        load=seconds.load,
        compile=seconds.compile,
        text=text,
        denoise=seconds.denoise,
        decode=seconds.decode,
        wait=wait,
        rest=left - wait,
    )


def summarize_time_use(seconds: StageSeconds, usage: DeviceUsage) -> TimeUse | None:
    """Where the time went; None where no shard left statistics."""
    if not seconds.total:
        return None
    breakdown = break_down_time(seconds, usage)
    sequential = tuple(
        _share_row(label, getattr(breakdown, stage), seconds.total)
        for stage, label in SEQUENTIAL_STAGES.items()
    )
    sequential += tuple(
        _share_row(f"pass {name}", duration, seconds.total)
        for name, duration in seconds.passes.items()
    )
    concurrent = tuple(
        _share_row(label, getattr(seconds, stage), seconds.total)
        for stage, label in CONCURRENT_STAGES.items()
        if stage not in ("safety", "score") or getattr(seconds, stage)
    )
    concurrent += _overlapping_device_work(seconds, breakdown)
    return TimeUse(tuple(row for row in sequential if row.share), concurrent)


def describe_starts(starts: Starts | None) -> str:
    """How long processes took to their first step, and what for; nothing where none was timed."""
    if starts is None:
        return ""
    if starts.count == 1:
        return format_start(starts.median)
    return (
        f"{format_count(starts.count)} processes. The median: {format_start(starts.median)} "
        f"The slowest, of shard {starts.slowest_shard}: {format_start(starts.slowest)}"
    )


def find_bottleneck(seconds: StageSeconds, usage: DeviceUsage) -> Bottleneck | None:
    """What limited shards with these times; None where no shard left statistics."""
    if not seconds.total:
        return None
    losses = _find_losses(seconds, break_down_time(seconds, usage))
    worst = max(losses, key=lambda loss: loss.seconds)
    if worst.seconds > MIN_LOST_SHARE * seconds.total:
        share = format_percent(worst.seconds / seconds.total)
        return Bottleneck(worst.kind, worst.sentence.format(share), ADVICE[worst.kind])
    return _device_bottleneck(seconds, usage)


def _overlapping_device_work(
    seconds: StageSeconds, breakdown: TimeBreakdown
) -> tuple[ShareRow, ...]:
    """What the device itself did during its batches, as far as it did anything."""
    work = {
        "encode texts, on the device": seconds.text - breakdown.text,
        "copy pixels": seconds.copy,
    }
    return tuple(
        _share_row(label, duration, seconds.total)
        for label, duration in work.items()
        if duration > 0
    )


def _share_row(label: str, duration: float, total: float) -> ShareRow:
    return ShareRow(label, format_duration(duration), duration / total)


def _find_losses(seconds: StageSeconds, breakdown: TimeBreakdown) -> list[_Loss]:
    return [
        _waiting_loss(seconds, breakdown.wait),
        _Loss("loading", breakdown.load, "Loading the model took {} of the time."),
        _Loss("compiling", breakdown.compile, "Compiling took {} of the time."),
        _Loss("texts", breakdown.text, "Encoding texts took {} of the time."),
        _Loss(
            "ends",
            breakdown.rest,
            "{} of the time was spent before the first image, after the last, and between them.",
        ),
    ]


def _waiting_loss(seconds: StageSeconds, wait: float) -> _Loss:
    """The device waits for the slower of the two stages that follow it."""
    if seconds.write > seconds.encode:
        return _Loss(
            "storage",
            wait,
            "Storage was the limit: {} of the time, the device waited for parts to be written.",
        )
    return _Loss(
        "encoding",
        wait,
        "Encoding was the limit: {} of the time, the device waited for it.",
    )


def _device_bottleneck(seconds: StageSeconds, usage: DeviceUsage) -> Bottleneck:
    if usage.busy is None:
        share = format_percent((seconds.denoise + seconds.decode) / seconds.total)
        sentence = f"The device was the limit, as it should be: it computed {share} of the time."
        return Bottleneck("device", sentence, "")

    share = format_percent(usage.busy)
    if usage.busy < MIN_BUSY_SHARE:
        sentence = (
            f"Nothing held the device up, yet it computed only {share} of the time after loading: "
            "it gets too little work at once."
        )
        return Bottleneck("launching", sentence, ADVICE["launching"])
    sentence = (
        f"The device was the limit, as it should be: it computed {share} of the time after loading."
    )
    return Bottleneck("device", sentence, "")
