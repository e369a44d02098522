"""Statistics of a shard over all attempts, and the startup time of a process."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from imagekiln.steps.job.execution import Placement, SpeedSettings
from imagekiln.steps.job.fields import Dtype
from imagekiln.steps.job.job import Job

# Bounds on read: values beyond them are damage, and would break sums.
Seconds = Annotated[float, Field(ge=0, le=1e10)]
Count = Annotated[int, Field(ge=0, le=2**62)]
MAX_AMOUNT = 1e18
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT)]


@dataclass(slots=True)
class StageSeconds:
    """Wall time by stage. Stages overlap, so they may add up to more than `total`.

    `text`, `denoise`, `decode` and `copy` are device time: encoding prompts, denoising steps, VAE
    decoding, and copying pixels to the CPU. `safety` is the model's safety checker, which runs
    beside the batches. `encode_waits` is high if the device is the bottleneck, `denoise_waits` if
    encoding or writing is. `busy` is the device's computing time, without prompts encoded
    concurrently, which count only as `text`. `score` is the time for scores, including the files
    they read, and `passes` the time of each pass of the job. No image is generated during either.
    """

    total: Seconds = 0.0
    load: Seconds = 0.0
    compile: Seconds = 0.0
    text: Seconds = 0.0
    denoise: Seconds = 0.0
    decode: Seconds = 0.0
    safety: Seconds = 0.0
    copy: Seconds = 0.0
    encode: Seconds = 0.0
    write: Seconds = 0.0
    denoise_waits: Seconds = 0.0
    encode_waits: Seconds = 0.0
    write_waits: Seconds = 0.0
    busy: Seconds = 0.0
    score: Annotated[Seconds, Field(exclude_if=not_)] = 0.0
    passes: Annotated[dict[str, Seconds], Field(exclude_if=not_)] = field(
        default_factory=dict, kw_only=True
    )

    def __add__(self, other: "StageSeconds") -> "StageSeconds":
        """Add the times of both."""
        both = StageSeconds(passes=_add_times(self.passes, other.passes))
        for stage in StageSeconds.__slots__:
            if stage != "passes":
                setattr(both, stage, getattr(self, stage) + getattr(other, stage))
        return both


def _add_times(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    names = {**first, **second}
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in names}


@dataclass(frozen=True, slots=True)
class ShardStats:
    """Statistics of one shard.

    `max_batch_size` is the number of images in the largest planned batch, and `max_batch_pixels`
    the most pixels in a batch after memory ran out, if it did. `busy_share` is the share of the
    wall time after loading in which the device computed, and `peak_memory` the most bytes in use at
    once. Both are None if unknown. `compile_mode` and `decode_mode` are the modes in use at the
    end, `one_at_a_time` is why batches were split into single images, if they were, and `placement`
    where weights were kept. `started_at` is the start of the first attempt and `ended_at` the end
    of the last, in seconds since 1970.

    `images` and `parts` count what the processes of this shard committed, for this shard or others.
    `helped_images` counts the images made for other shards. `repeated_images` were generated and
    dropped, since another process committed them first.
    """

    shard: Count
    attempts: Count
    images: Count
    parts: Count
    max_batch_size: Count
    device: str
    seconds: StageSeconds
    versions: dict[str, str] = field(default_factory=dict)
    busy_share: Annotated[float, Field(ge=0, le=1)] | None = None
    peak_memory: Count | None = None
    max_batch_pixels: Count | None = None
    compile_mode: Literal["regional", "none"] = "none"
    decode_mode: Literal["whole", "tiles"] = "whole"
    one_at_a_time: str | None = None
    placement: Placement = "resident"
    started_at: Seconds | None = None
    ended_at: Seconds | None = None
    helped_images: Count = 0
    repeated_images: Count = 0

    @property
    def images_per_second(self) -> float:
        """Images generated per second of wall time, loading included."""
        total = self.seconds.total
        if not total:
            return 0.0
        return self.images / total

    @property
    def working_seconds(self) -> float:
        """Wall time after loading, in seconds."""
        return max(0.0, self.seconds.total - self.seconds.load)

    def __add__(self, later: "ShardStats") -> "ShardStats":
        """Add the statistics of a later attempt at the same shard."""
        return replace(
            later,
            attempts=self.attempts + later.attempts,
            images=self.images + later.images,
            parts=self.parts + later.parts,
            helped_images=self.helped_images + later.helped_images,
            repeated_images=self.repeated_images + later.repeated_images,
            seconds=self.seconds + later.seconds,
            busy_share=mean_busy_share([self, later]),
            peak_memory=max_peak_memory([self, later]),
            one_at_a_time=later.one_at_a_time or self.one_at_a_time,
            started_at=first_start([self, later]),
        )


def time_share(seconds: float, whole: float) -> float | None:
    """Return `seconds` as a share of `whole`, at most 1; None if `whole` is zero."""
    return min(1.0, seconds / whole) if whole > 0 else None


def mean_busy_share(stats: Iterable[ShardStats]) -> float | None:
    """Return the mean of known shares, weighted by time after loading; None if all are unknown."""
    whole = 0.0
    busy = 0.0
    for shard in stats:
        if shard.busy_share is not None:
            whole += shard.working_seconds
            busy += shard.busy_share * shard.working_seconds
    return busy / whole if whole else None


def elapsed_seconds(stats: Iterable[ShardStats]) -> float | None:
    """Return the seconds in which any shard was being generated; None if unknown."""
    elapsed = 0.0
    counted_until = 0.0
    for start, end in sorted((shard.started_at or 0.0, shard.ended_at or 0.0) for shard in stats):
        elapsed += max(0.0, end - max(start, counted_until))
        counted_until = max(counted_until, end)
    return elapsed or None


def first_start(stats: Iterable[ShardStats]) -> float | None:
    """Return the start of the first attempt at any shard; None if unknown."""
    return min(filter(None, (shard.started_at for shard in stats)), default=None)


def last_end(stats: Iterable[ShardStats]) -> float | None:
    """Return the end of the last attempt at any shard; None if unknown."""
    return max(filter(None, (shard.ended_at for shard in stats)), default=None)


def max_peak_memory(stats: Iterable[ShardStats]) -> int | None:
    """Return the highest memory use, in bytes; None if it is unknown for all."""
    return max(filter(None, (shard.peak_memory for shard in stats)), default=None)


@dataclass(frozen=True, slots=True)
class RunRate:
    """Device-seconds of a run, with its images, their work in pixels times steps, and its shards.

    `loading_seconds` passed before the first image of each process, `working_seconds` after.
    Neither includes repeated work. `passes` holds the settings of the run's passes, whose time is
    included.
    """

    run_id: str
    digest: str
    dtype: Dtype
    speed: SpeedSettings
    device: str
    images: Annotated[int, Field(ge=1, le=1e15)]
    work: Annotated[float, Field(ge=1, le=MAX_AMOUNT)]
    shards: Annotated[int, Field(ge=1, le=1e9)]
    working_seconds: Amount
    loading_seconds: Amount
    passes: Annotated[str, Field(exclude_if=not_)] = ""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Estimate of a run, made at planning, and the source of its figures."""

    gpu_hours: Amount
    source: str
    cost: Amount | None = None


def describe_passes(job: Job) -> str:
    """Describe the passes for comparison: another kind, model or setting has another speed."""
    if not job.passes:
        return ""
    settings = [each_pass.model_dump(mode="json") for each_pass in job.passes.values()]
    return json.dumps(settings)
