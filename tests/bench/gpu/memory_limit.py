"""Jobs that draw with less memory than a batch needs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.stats import ShardStats, load_stats
from imagekiln.steps.storage import open_store
from tests.bench.gpu.session import scratch_folder
from tests.bench.jobs import Check, Draw, image_bytes, run_job
from tests.bench.timeline import Timeline, find_phases
from tests.bench.work import Work, job


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a job drew: good images, digests by seed, steady images a second, peak memory.

    `batch` and `decode_mode` are what was left in the end.
    """

    ok: int
    digests: dict[int, str]
    rate: float
    peak_bytes: int
    batch: int
    decode_mode: str


def draw(work: Work, first: int = 0, max_batch: int | None = None) -> Drawn:
    """Run the work, its prompts from this number on.

    More than `max_batch` images at once raise what a full device raises: where there is no CUDA,
    nothing else limits memory.
    """
    timeline = Timeline()

    def hook(draw_batch: Draw) -> Draw:
        def draw_and_mark(
            rows: Sequence[ImageRow], size: int, check: Check
        ) -> Sequence[DrawnImage]:
            if max_batch is not None and size > max_batch:
                raise torch.OutOfMemoryError("out of memory, as a stand-in for a device says")
            images = draw_batch(rows, size, check)
            timeline.mark(len(rows))
            return images

        return draw_and_mark

    with scratch_folder() as folder:
        numbers = range(first, first + work.images)
        uri, summary = run_job(job(work, folder, numbers), hook)
        digests = {
            seed: hashlib.sha256(content).hexdigest() for seed, content in image_bytes(uri).items()
        }
        stats = load_stats(open_store(uri), 0)
    rate = find_phases(*timeline.stop()).steady_rate
    return Drawn(
        summary.ok, digests, rate, _peak_bytes(), _final_batch(work, stats), _decode_mode(stats)
    )


def draw_limited(work: Work, limit: int) -> tuple[Drawn, Drawn]:
    """Run the work within this many bytes of the device, and then a second job without a limit."""
    if not torch.cuda.is_available():
        limited = draw(work, max_batch=work.batch // 2)
    else:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)
        limited = draw(work)
        torch.cuda.set_per_process_memory_fraction(1.0)
    return limited, draw(work, first=work.images)


def _final_batch(work: Work, stats: ShardStats | None) -> int:
    if stats is None or stats.max_batch_pixels is None:
        return work.batch
    return min(work.batch, stats.max_batch_pixels // work.side**2)


def _decode_mode(stats: ShardStats | None) -> str:
    return "whole" if stats is None else stats.decode_mode


def _peak_bytes() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
