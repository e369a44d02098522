"""The seconds of a run's devices, one thing after another: so they add up to all of the time."""

from dataclasses import dataclass

from imagekiln.steps.stats import StageSeconds
from imagekiln.steps.usage import DeviceUsage


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
    wait = min(took.denoise_waits, left)  # the device may still be at a batch while the next one waits
    return TimeBreakdown(took.load, took.compile, text, took.denoise, took.decode, wait, left - wait)
