"""Where a run's time went: what the device did, stage after stage, and what was done beside it."""

from dataclasses import dataclass

from imagekiln.steps.aggregate.report.charts import Chart, ShareRow, StackedBarPlot
from imagekiln.steps.aggregate.throughput import DeviceUsage
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.figures import format_duration, format_percent


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Seconds in turn, in this order. `text` has the texts that were not encoded beside a batch.

    `wait` is for encoding or writing, and `rest` what is left: before the first image, after the last, and between.
    """

    load: float
    compile: float
    text: float
    denoise: float
    decode: float
    wait: float
    rest: float


def break_down_time(took: StageSeconds, used: DeviceUsage) -> TimeBreakdown:
    """What the device did in turn, of shards that took this time with devices used like this."""
    drawn = took.denoise + took.decode
    # Where it is known for how long the device computed, what is in that and no drawing is texts.
    text = took.text if used.busy is None else used.busy * (took.total - took.load) - drawn
    text = min(took.text, max(0.0, text))
    left = max(0.0, took.total - took.load - took.compile - text - drawn)
    wait = min(
        took.denoise_waits, left
    )  # the device may still be at a batch while the next one waits
    return TimeBreakdown(
        took.load, took.compile, text, took.denoise, took.decode, wait, left - wait
    )


MIN_PLOT_SECONDS = 60.0  # of less, words and a table say all
SEQUENTIAL_STAGES = {
    "load": "load the model",
    "compile": "compile",
    "text": "encode texts",
    "denoise": "denoise",
    "decode": "decode",
    "wait": "wait",
    "rest": "begin and end",
}
COMBINED_STAGES = "text, denoise, decode"  # what versions told that knew no more
CONCURRENT_STAGES = {"encode": "encode and hash", "write": "write parts"}


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Shares of the shards' wall time: of stages `in_turn`, which add up to all of it, and of those `beside` them."""

    sequential: tuple[ShareRow, ...]
    concurrent: tuple[ShareRow, ...]
    chart: Chart


def summarize_time_use(took: StageSeconds, used: DeviceUsage) -> TimeUse | None:
    """Where the time went; None where no shard told."""
    if not took.total:
        return None
    each = break_down_time(took, used)
    in_turn = _share_rows(
        [(_stage_label(name, took), getattr(each, name)) for name in SEQUENTIAL_STAGES], took.total
    )
    main = [(name, getattr(took, stage)) for stage, name in CONCURRENT_STAGES.items()]
    beside = _share_rows([*main, *_device_side_work(took, each)], took.total)
    chart = _time_use_chart(took, in_turn, beside[: len(main)], beside)
    return TimeUse(tuple(share for share in in_turn if share.share), beside, chart)


def _stage_label(stage: str, took: StageSeconds) -> str:
    return COMBINED_STAGES if stage == "denoise" and not took.decode else SEQUENTIAL_STAGES[stage]


def _device_side_work(took: StageSeconds, each: TimeBreakdown) -> list[tuple[str, float]]:
    """What the device itself does beside its batches, where it did any of it."""
    named = (("encode texts, on the device", took.text - each.text), ("copy pixels", took.copy))
    return [(name, time) for name, time in named if time > 0]


def _share_rows(each: list[tuple[str, float]], total: float) -> tuple[ShareRow, ...]:
    return tuple(ShareRow(name, format_duration(time), time / total) for name, time in each)


def _time_use_chart(
    took: StageSeconds,
    in_turn: tuple[ShareRow, ...],
    bars: tuple[ShareRow, ...],
    beside: tuple[ShareRow, ...],
) -> Chart:
    text = f"Of the {format_duration(took.total)} that the shards took, in turn: {_format_shares(in_turn)}. Beside these: {_format_shares(beside)}."
    drawing = StackedBarPlot(in_turn, bars) if took.total >= MIN_PLOT_SECONDS else None
    return Chart("time", "Where the time went", text, (), (), drawing)


def _format_shares(shares: tuple[ShareRow, ...]) -> str:
    return (
        ", ".join(f"{each.name} {format_percent(each.share)}" for each in shares if each.share)
        or "nothing"
    )
