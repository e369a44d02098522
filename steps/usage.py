"""How well a run's devices were used: how long they computed, how near to what they can, and in how much memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from imagekiln.steps.stats import ShardStats, busy, peak, weighted


@dataclass(frozen=True, slots=True)
class Usage:
    """What the shards told of their devices; None where none did.

    `busy` is the share of wall time after loading in which the devices computed, `of_limit` the share of the FLOP that
    they can do in that time, and `peak_memory` the most that one of them held, in bytes.
    """

    busy: float | None = None
    of_limit: float | None = None
    peak_memory: int | None = None


def usage(told: Sequence[ShardStats]) -> Usage:
    """The use of all shards' devices: a shard that took longer counts for more."""
    done = [(each.flops, each.limit * each.working) for each in told if each.flops is not None and each.limit]
    return Usage(busy(told), weighted(done), peak(told))
