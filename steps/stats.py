"""What a shard took: seconds by stage, over all attempts that told of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter, ValidationError

from imagekiln.steps import names
from imagekiln.steps.ahead import Waits
from imagekiln.steps.errors import Missing
from imagekiln.steps.storage import Store


@dataclass(slots=True)
class Seconds:
    """Wall time. `denoise`, `encode` and `write` overlap, so they may add up to more than `total`.

    `encode_waits` is high where the device is what limits, `denoise_waits` where encoding or writing is.
    """

    total: float = 0.0
    load: float = 0.0
    denoise: float = 0.0
    encode: float = 0.0
    write: float = 0.0
    denoise_waits: float = 0.0
    encode_waits: float = 0.0
    write_waits: float = 0.0


@dataclass(frozen=True, slots=True)
class ShardStats:
    """One shard's statistics. `batch` is the batch size that fitted in the end."""

    shard: int
    attempts: int
    images: int
    parts: int
    batch: int
    device: str
    seconds: Seconds
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def images_per_second(self) -> float:
        """Images made for each second of wall time, loading included."""
        return self.images / self.seconds.total if self.seconds.total else 0.0


STATS: TypeAdapter[ShardStats] = TypeAdapter(ShardStats)


@contextmanager
def timed(seconds: Seconds, stage: str) -> Iterator[None]:
    """Add the time that the block takes to a stage, however the block ends."""
    started = time.perf_counter()
    try:
        yield
    finally:
        setattr(seconds, stage, getattr(seconds, stage) + time.perf_counter() - started)


def note_waits(seconds: Seconds, drawn: Waits, encoded: Waits) -> None:
    """Write down where the pipeline's queues stood full or empty."""
    seconds.denoise_waits += drawn.full
    seconds.encode_waits += drawn.empty
    seconds.write_waits += encoded.empty


def record(store: Store, attempt: ShardStats) -> None:
    """Write the shard's statistics, added to those of earlier attempts."""
    earlier = load(store, attempt.shard)
    store.replace(names.stats(attempt.shard), STATS.dump_json(_added(earlier, attempt), indent=1) + b"\n")


def load(store: Store, shard: int) -> ShardStats | None:
    """The statistics of a shard, where it left any."""
    try:
        return STATS.validate_json(store.read(names.stats(shard)))
    except (Missing, ValidationError):  # of another version, or damaged: figures only
        return None


def _added(earlier: ShardStats | None, attempt: ShardStats) -> ShardStats:
    if earlier is None:
        return attempt
    seconds = Seconds(*(getattr(earlier.seconds, name) + getattr(attempt.seconds, name) for name in Seconds.__slots__))
    return replace(
        attempt,
        attempts=earlier.attempts + 1,
        images=earlier.images + attempt.images,
        parts=earlier.parts + attempt.parts,
        seconds=seconds,
    )
