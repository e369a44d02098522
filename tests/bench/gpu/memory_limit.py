"""Jobs that draw with less memory than a batch needs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.stats import ShardStats
from tests.bench.contenders import marking_hook, peak_memory
from tests.bench.jobs import Check, Draw, image_bytes, run_job
from tests.bench.measure import scratch_folder
from tests.bench.timeline import Timeline, find_phases
from tests.bench.work import Work, make_job
from tests.runs import stats_of


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """What a job drew: good images, digests by seed, steady images a second, peak memory.

    `batch` and `decode_mode` are those in use at the end.
    """

    ok: int
    digests: dict[int, str]
    rate: float
    peak_bytes: int
    batch: int
    decode_mode: str

    @property
    def mode(self) -> tuple[int, str]:
        """How images were drawn in the end, on which their bytes depend."""
        return self.batch, self.decode_mode

    def count_equal(self, reference: "DrawnJob") -> int:
        """The number of images that have the same bytes in another job."""
        digests = self.digests.items()
        return sum(reference.digests[seed] == digest for seed, digest in digests)


def draw(work: Work, first: int = 0, max_batch: int | None = None) -> DrawnJob:
    """Run the work, its prompts from this number on.

    More than `max_batch` images at once raise what a full device raises: where there is no CUDA,
    nothing else limits memory.
    """
    timeline = Timeline()

    def hook(draw_batch: Draw) -> Draw:
        limited = draw_batch if max_batch is None else limit_batch(draw_batch, max_batch)
        return marking_hook(timeline)(limited)

    with scratch_folder() as folder:
        numbers = range(first, first + work.images)
        uri, summary = run_job(make_job(work, folder, numbers), hook)
        digests = _image_digests(uri)
        stats = stats_of(uri)
    whole, ends = timeline.stop()
    return DrawnJob(
        ok=summary.ok,
        digests=digests,
        rate=find_phases(whole, ends).steady_rate,
        peak_bytes=peak_memory() or 0,
        batch=_final_batch(work, stats),
        decode_mode=_decode_mode(stats),
    )


def limit_batch(draw_batch: Draw, max_batch: int) -> Draw:
    """A function that runs out of memory where it is called for more images than this."""

    def draw_limited_batch(
        rows: Sequence[ImageRow], size: int, check: Check
    ) -> Sequence[DrawnImage]:
        if size > max_batch:
            raise torch.OutOfMemoryError("out of memory, as a stand-in for a device says")
        return draw_batch(rows, size, check)

    return draw_limited_batch


def draw_limited(work: Work, limit: int) -> tuple[DrawnJob, DrawnJob]:
    """Run the work within this many bytes of the device, and then a second job without a limit."""
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)
        limited = draw(work)
        torch.cuda.set_per_process_memory_fraction(1.0)
    else:
        limited = draw(work, max_batch=work.batch // 2)
    return limited, draw(work, first=work.images)


def _image_digests(uri: str) -> dict[int, str]:
    digests: dict[int, str] = {}
    for seed, content in image_bytes(uri).items():
        digests[seed] = hashlib.sha256(content).hexdigest()
    return digests


def _final_batch(work: Work, stats: ShardStats | None) -> int:
    if stats is None or stats.max_batch_pixels is None:
        return work.batch
    return min(work.batch, stats.max_batch_pixels // work.side**2)


def _decode_mode(stats: ShardStats | None) -> str:
    return "whole" if stats is None else stats.decode_mode
