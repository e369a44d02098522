"""Where a run's time went, stage by stage, and what limited its throughput."""

from collections.abc import Mapping
from dataclasses import dataclass

from imagekiln.steps.aggregate.report.charts import ShareRow
from imagekiln.steps.aggregate.throughput import DeviceUsage
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.figures import format_duration, format_percent

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
# By kind: a stage in which the device draws nothing, a sentence for its share, and a remedy.
LOSSES = {
    "encoding": (
        "wait",
        "Encoding was the limit: {} of the time, the device waited for it.",
        "Give the pods more CPU cores, or choose a faster encoding.",
    ),
    "storage": (
        "wait",
        "Storage was the limit: {} of the time, the device waited for parts to be written.",
        "Move the output closer to the pods, or choose an encoding with smaller files.",
    ),
    "loading": (
        "load",
        "Loading the model took {} of the time.",
        "Make shards larger, or keep the model in a cache volume.",
    ),
    "compiling": (
        "compile",
        "Compiling took {} of the time.",
        "Make shards larger, or keep the compiled code; for a few images, set speed.compile to "
        "off.",
    ),
    "texts": (
        "text",
        "Encoding texts took {} of the time.",
        "Group rows with the same prompt, or ask for several images of each.",
    ),
    "ends": (
        "rest",
        "{} of the time was spent before the first image, after the last, and between them.",
        "Make shards larger, and parts smaller.",
    ),
}
# Of a run of one shard, only their size would shorten them: its pages do not speak of it.
SHARD_SIZE_BOTTLENECKS = ("loading", "compiling", "ends")


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Shares of the shards' wall time.

    The `sequential` ones add up to all of it; the `concurrent` ones overlap them.
    """

    sequential: tuple[ShareRow, ...]
    concurrent: tuple[ShareRow, ...]


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limited a run; `sentence` and `advice` are for the report.

    `kind` is one of LOSSES, "device", or "launching".
    """

    kind: str
    sentence: str
    advice: str


def break_down_time(seconds: StageSeconds, usage: DeviceUsage) -> dict[str, float]:
    """The devices' seconds by stage, one after another; the stages do not overlap.

    `text` counts the texts that were not encoded during a batch, `wait` the time spent waiting for
    encoding or writing, and `rest` what is left: before the first image, after the last, between.
    """
    drawing = seconds.denoise + seconds.decode
    passes = sum(seconds.passes.values())
    text = seconds.text
    if usage.busy is not None:
        # Of the time in which the device computed, what was not drawing was encoding texts.
        computing = usage.busy * (seconds.total - seconds.load)
        text = min(seconds.text, max(0.0, computing - drawing - passes))

    left = max(0.0, seconds.total - seconds.load - seconds.compile - text - drawing - passes)
    # The device may still be drawing a batch while the one before waits.
    wait = min(seconds.denoise_waits, left)
    return {
        "load": seconds.load,
        "compile": seconds.compile,
        "text": text,
        "denoise": seconds.denoise,
        "decode": seconds.decode,
        "wait": wait,
        "rest": left - wait,
    }


def summarize_time_use(seconds: StageSeconds, usage: DeviceUsage) -> TimeUse | None:
    """Where the time went; None if no shard left statistics."""
    if not seconds.total:
        return None
    breakdown = break_down_time(seconds, usage)
    sequential = {label: breakdown[stage] for stage, label in SEQUENTIAL_STAGES.items()}
    sequential |= {f"pass {name}": duration for name, duration in seconds.passes.items()}
    concurrent = {label: getattr(seconds, stage) for stage, label in CONCURRENT_STAGES.items()}
    concurrent["encode texts, on the device"] = seconds.text - breakdown["text"]
    concurrent["copy pixels"] = seconds.copy
    return TimeUse(
        _share_rows(sequential, seconds.total),
        _share_rows(concurrent, seconds.total),
    )


def _share_rows(durations: Mapping[str, float], total: float) -> tuple[ShareRow, ...]:
    return tuple(
        ShareRow(label, format_duration(duration), duration / total)
        for label, duration in durations.items()
        if duration > 0
    )


def find_bottleneck(seconds: StageSeconds, usage: DeviceUsage) -> Bottleneck | None:
    """What limited shards with these times; None if no shard left statistics."""
    if not seconds.total:
        return None
    breakdown = break_down_time(seconds, usage)
    # The device waits for the slower of the two stages that follow it.
    faster = "encoding" if seconds.write > seconds.encode else "storage"
    lost = {}
    for kind, (stage, _, _) in LOSSES.items():
        if kind != faster:
            lost[kind] = breakdown[stage]
    largest = max(lost, key=lost.__getitem__)
    lost_seconds = lost[largest]
    if lost_seconds > MIN_LOST_SHARE * seconds.total:
        _, sentence, advice = LOSSES[largest]
        share = format_percent(lost_seconds / seconds.total)
        return Bottleneck(largest, sentence.format(share), advice)
    return _device_bottleneck(seconds, usage)


def _device_bottleneck(seconds: StageSeconds, usage: DeviceUsage) -> Bottleneck:
    busy = usage.busy
    if busy is None:
        computed = format_percent((seconds.denoise + seconds.decode) / seconds.total)
        when = "of the time"
    else:
        computed = format_percent(busy)
        when = "of the time after loading"
    if busy is None or busy >= MIN_BUSY_SHARE:
        sentence = f"The device was the limit, as it should be: it computed {computed} {when}."
        return Bottleneck("device", sentence, "")
    return Bottleneck(
        "launching",
        f"Nothing held the device up, yet it computed only {computed} {when}: it gets too little "
        "work at once.",
        "Draw more images in a batch, or let the model be compiled.",
    )
