"""How well a run's devices were used: for how long they computed, and in how much memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from imagekiln.steps.stats import ShardStats, max_peak_memory, mean_busy_share


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What the shards told of their devices; None where none did.

    `busy` is the share of wall time after loading in which the devices computed, and `peak_memory` the most that one of
    them held, in bytes.
    """

    busy: float | None = None
    peak_memory: int | None = None


def summarize_usage(told: Sequence[ShardStats]) -> DeviceUsage:
    """The use of all shards' devices: a shard that took longer counts for more."""
    return DeviceUsage(mean_busy_share(told), max_peak_memory(told))
