"""What limited a run, in a sentence, and what to do about it."""

from dataclasses import dataclass
from typing import Literal

from imagekiln.steps.aggregate.report.time_use import TimeBreakdown, break_down_time
from imagekiln.steps.aggregate.throughput import DeviceUsage
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.figures import format_percent

MIN_LOST_SHARE = 0.1  # of the time: what takes less is not worth a change
MIN_BUSY_SHARE = 0.8  # of the time: a device that computes for less is not the limit
BottleneckKind = Literal[
    "device", "launching", "encoding", "storage", "loading", "compiling", "texts", "ends"
]
ADVICE: dict[BottleneckKind, str] = {
    "encoding": "Give the pods more CPU cores, or choose a quicker encoding.",
    "storage": "Bring the output nearer to the pods, or choose an encoding with smaller files.",
    "loading": "Make shards larger, or keep the model in a cache volume.",
    "compiling": "Make shards larger, or keep what was compiled; for a few images, set speed.compile to off.",
    "texts": "Let rows with the same prompt follow one another, or ask for several images of each.",
    "ends": "Make shards larger, and parts smaller.",
    "launching": "Draw more images in a batch, or let the model be compiled.",
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limited: `said` and `advice` are sentences."""

    kind: BottleneckKind
    sentence: str
    advice: str


def find_bottleneck(took: StageSeconds, used: DeviceUsage) -> Bottleneck | None:
    """What limited shards that took this time with devices used like this; None where none told."""
    if not took.total:
        return None
    lost = _lost_seconds(took, break_down_time(took, used))
    worst = max(lost, key=lambda limit: lost[limit][0])
    seconds, said = lost[worst]
    if seconds > MIN_LOST_SHARE * took.total:
        return Bottleneck(worst, said.format(format_percent(seconds / took.total)), ADVICE[worst])
    return _device_bottleneck(took, used)


def _lost_seconds(
    took: StageSeconds, each: TimeBreakdown
) -> dict[BottleneckKind, tuple[float, str]]:
    """Seconds in which the device made no pixels, by why, and a sentence for their share."""
    later: dict[BottleneckKind, tuple[float, str]] = (
        {
            "storage": (
                each.wait,
                "Storage was the limit: {} of the time, the device waited for parts to be written.",
            )
        }
        if took.write > took.encode
        else {
            "encoding": (
                each.wait,
                "Encoding was the limit: {} of the time, the device waited for it.",
            )
        }
    )
    return later | {
        "loading": (each.load, "Loading the model took {} of the time."),
        "compiling": (each.compile, "Compiling took {} of the time."),
        "texts": (each.text, "Encoding texts took {} of the time."),
        "ends": (
            each.rest,
            "Before the first image and after the last, and between them, {} of the time went.",
        ),
    }


def _device_bottleneck(took: StageSeconds, used: DeviceUsage) -> Bottleneck:
    busy = (took.denoise + took.decode) / took.total if used.busy is None else used.busy
    if used.busy is not None and busy < MIN_BUSY_SHARE:
        said = f"Nothing held the device up, yet it computed only {format_percent(busy)} of the time after loading."
        return Bottleneck(
            "launching", f"{said} What it is given at once is too little.", ADVICE["launching"]
        )
    after = "" if used.busy is None else " after loading"
    said = f"The device was the limit, as it should be: it computed {format_percent(busy)} of the time{after}."
    return Bottleneck("device", said, "")
