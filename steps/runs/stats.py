"""What a shard took: seconds by stage, over all attempts that told of it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from imagekiln.steps.errors import Missing
from imagekiln.steps.runs.keys import stats_key
from imagekiln.steps.runtime.prefetch import QueueWaits
from imagekiln.steps.storage.store import Store


@dataclass(slots=True)
class StageSeconds:
    """Wall time by stage. Stages overlap, so they may add up to more than `total`.

    `text`, `denoise`, `decode` and `copy` are the device's: encoding texts, the denoiser's steps, the VAE's decoding,
    and pixels on their way to the CPU. `encode_waits` is high where the device is what limits, `denoise_waits` where
    encoding or writing is.
    """

    total: float = 0.0
    load: float = 0.0
    compile: float = 0.0
    text: float = 0.0
    denoise: float = 0.0
    decode: float = 0.0
    copy: float = 0.0
    encode: float = 0.0
    write: float = 0.0
    denoise_waits: float = 0.0
    encode_waits: float = 0.0
    write_waits: float = 0.0

    def __add__(self, other: "StageSeconds") -> "StageSeconds":
        """Both together."""
        return StageSeconds(
            *(getattr(self, name) + getattr(other, name) for name in StageSeconds.__slots__)
        )


@dataclass(frozen=True, slots=True)
class ShardStats:
    """One shard's statistics. `batch` is the images in the largest batch that was planned, and `batch_pixels` the most
    pixels that a batch held in the end, where memory had run out.

    `busy` is the share of the wall time after loading in which the device computed, and `peak_memory` the most bytes in
    use at once; None where that is not known. `compiled` is how the model was, and `decoded` how the VAE worked, in the
    end.
    """

    shard: int
    attempts: int
    images: int
    parts: int
    max_batch_size: int
    device: str
    seconds: StageSeconds
    versions: dict[str, str] = field(default_factory=dict)
    busy_share: float | None = None
    peak_memory: int | None = None
    max_batch_pixels: int | None = None
    compile_mode: Literal["regional", "whole", "none"] = "none"
    decode_mode: Literal["whole", "slices", "tiles"] = "whole"

    @property
    def images_per_second(self) -> float:
        """Images made for each second of wall time, loading included."""
        return self.images / self.seconds.total if self.seconds.total else 0.0

    @property
    def working_seconds(self) -> float:
        """Seconds after loading."""
        return max(0.0, self.seconds.total - self.seconds.load)


STATS_TYPE_ADAPTER: TypeAdapter[ShardStats] = TypeAdapter(ShardStats)


@contextmanager
def time_stage(seconds: StageSeconds, stage: str) -> Iterator[None]:
    """Add the time that the block takes to a stage, however the block ends."""
    started = time.perf_counter()
    try:
        yield
    finally:
        setattr(seconds, stage, getattr(seconds, stage) + time.perf_counter() - started)


def add_queue_waits(seconds: StageSeconds, drawn: QueueWaits, encoded: QueueWaits) -> None:
    """Write down where the pipeline's queues stood full or empty."""
    seconds.denoise_waits += drawn.full_seconds
    seconds.encode_waits += drawn.empty_seconds
    seconds.write_waits += encoded.empty_seconds


def time_share(seconds: float, whole: float) -> float | None:
    """What share of the whole so many seconds are, at most all of it; None of nothing."""
    return min(1.0, seconds / whole) if whole > 0 else None


def record_stats(store: Store, attempt: ShardStats) -> None:
    """Write the shard's statistics, added to those of earlier attempts."""
    earlier = load_stats(store, attempt.shard)
    store.replace(
        stats_key(attempt.shard),
        STATS_TYPE_ADAPTER.dump_json(_add_attempt(earlier, attempt), indent=1) + b"\n",
    )


def load_stats(store: Store, shard: int) -> ShardStats | None:
    """The statistics of a shard, where it left any."""
    try:
        return STATS_TYPE_ADAPTER.validate_json(store.read(stats_key(shard)))
    except (Missing, ValidationError):  # of another version, or damaged: figures only
        return None


def _add_attempt(earlier: ShardStats | None, attempt: ShardStats) -> ShardStats:
    if earlier is None:
        return attempt
    return replace(
        attempt,
        attempts=earlier.attempts + 1,
        images=earlier.images + attempt.images,
        parts=earlier.parts + attempt.parts,
        seconds=earlier.seconds + attempt.seconds,
        busy_share=mean_busy_share([earlier, attempt]),
        peak_memory=max_peak_memory([earlier, attempt]),
    )


def mean_busy_share(told: Sequence[ShardStats]) -> float | None:
    """The share over all that told of one, each weighted by its time after loading."""
    return weighted_share(
        [
            (each.busy_share * each.working_seconds, each.working_seconds)
            for each in told
            if each.busy_share is not None
        ]
    )


def max_peak_memory(told: Sequence[ShardStats]) -> int | None:
    """The most memory of all that told of any, in bytes."""
    return max((each.peak_memory for each in told if each.peak_memory is not None), default=None)


def weighted_share(pairs: Sequence[tuple[float, float]]) -> float | None:
    """What share the first of all pairs are of the second; None of nothing."""
    whole = sum(of for _, of in pairs)
    return sum(part for part, _ in pairs) / whole if whole else None
