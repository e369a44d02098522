"""Nights that are made again and again under one output, and what the processes of each do.

They run the real code; only the pictures are no model's: each follows from its image's id.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from imagekiln.steps.aggregate import step as aggregate_step
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.encoder import mark_flat
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.step import generate_and_help
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.retry import announce_retry
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.image import DrawnImage, ImageRow, PassedImages, ScoreValue
from imagekiln.steps.runs.keys import REPORT_KEY
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import open_run, retry_address
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage.store import Store
from tests import jobs, models
from tests.interleaving import process_number

SIDE = 64
PROMPTS = (
    "a circle",
    "a square that fails at first",
    "a star",
    "a flat sky, at first",
    "a triangle that fails at times",
    "a cross that always fails",
    "a ring",
    "a line",
    "a moon that fails at times",
)
ROWS_OF_NIGHTS = (5, 9)  # how many of the prompts each night's table has
DEFAULTS: dict[str, object] = {"steps": 1, "width": SIDE, "height": SIDE, "seed": 7}
PASSES: dict[str, object] = {"over": {"kind": "refine", "strength": 1.0}}
CANDIDATES = 2
FAILING_PASSES = 0.3  # of all
MAX_RETRIES = 6
# What an image is in the end: its status, and the hashes of its file and its pixels.
Outcome = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a history is about: how many nights, and their jobs."""

    nights: int
    failed_share: float = 1.0
    skip_existing: bool = False
    passes: bool = False
    part_images: int = 1
    shard_images: int = 3
    images: int = 1
    """Of each prompt."""
    keeps_best: bool = False
    """Whether the images of a prompt compete."""

    def job(self, folder: Path, night: int) -> Job:
        """The job of a night, whose runs lie in `folder`/out."""
        prompts = PROMPTS[: ROWS_OF_NIGHTS[night]]
        table = folder / f"{night}.parquet"
        if not table.exists():
            jobs.write(table, {"prompt": prompts, "id": [f"row-{n}" for n in range(len(prompts))]})
        return jobs.job(
            folder,
            prompts=str(table),
            name="nightly",
            run_id=f"night-{night}",
            defaults=DEFAULTS | ({} if self.keeps_best else {"images_per_prompt": self.images}),
            limits={"failed_share": self.failed_share},
            skip_existing=self.skip_existing,
            passes=PASSES if self.passes else {},
            **self._best(),
            batch={"images": 1},
            part={"images": self.part_images},
            shard={"images": self.shard_images},
            device="cpu",
        )

    def _best(self) -> dict[str, object]:
        if not self.keeps_best:
            return {}
        return {
            "scores": {"taste": {"kind": "own", "entry": "tests.scorers:SeedScore"}},
            "keep": {"of": self.images, "by": "taste"},
        }


class Painter(Denoiser):
    """Draws pictures that follow from an image's id; some prompts fail, or come out flat.

    Some fail in one process and not in the next, and each process has a taste of its own.
    """

    def __init__(self, is_retry: bool) -> None:
        """Take what drawing needs, but no prompt is given to the model."""
        super().__init__(models.pipe("shapes"))
        self._is_retry = is_retry

    def draw(
        self,
        rows: Sequence[ImageRow],
        size: int,  # noqa: ARG002  # as of every denoiser
        check: Callable[[], None],
    ) -> Sequence[DrawnImage]:
        check()
        return [self._draw(row) for row in rows]

    def _failing_share(self, prompt: str) -> float:
        if "at times" in prompt:
            return 0.5
        return 0.3 if self.scorers else 0.0  # what loses is not drawn again

    def _draw(self, row: ImageRow) -> DrawnImage:
        prompt = row.parameters.prompt
        if "always" in prompt:
            error = ValueError if "always fails" in prompt else RuntimeError
            raise error(f"cannot draw {prompt!r}")
        if "fails at first" in prompt and not self._is_retry:
            raise RuntimeError(f"cannot draw {prompt!r}")
        if process_number() and mood(row, "draw") < self._failing_share(prompt):
            raise RuntimeError(f"cannot draw {prompt!r} this time")
        dice = np.random.default_rng(int(row.image_id, 16))
        rgb = np.full((SIDE, SIDE, 3), dice.integers(0, 256, 3), np.uint8)
        if "at first" not in prompt or self._is_retry:
            rgb[0] = dice.integers(0, 256, (SIDE, 3), np.uint8)
        return DrawnImage(row.index_in_part, rgb)


def taste(_: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
    """The scores that this process gives to images."""
    return [ScoreValue(mood(row, "taste")) for row in rows]


def mood(row: ImageRow, purpose: str) -> float:
    """A number from 0 to 1 that depends on the image, the process and the purpose."""
    dice = np.random.default_rng([process_number(), int(row.image_id, 16), *purpose.encode()])
    return float(dice.random())


@cache
def painter(is_retry: bool, has_taste: bool, has_passes: bool) -> Painter:
    """The one for the run itself or for its retries, with scores and passes or without."""
    the_painter = Painter(is_retry)
    if has_taste:
        the_painter.scorers = {"taste": taste}
    if has_passes:
        the_painter.passes = Negatives()
    return the_painter


def painter_of(plan: Plan) -> Painter:
    """The one of a plan."""
    return painter(plan.retry > 0, plan.job.keep is not None, bool(plan.job.passes))


class Negatives:
    """Stands for passes: negatives of the images that are ok and not flat, or failures at times.

    So may fail what has won among candidates.
    """

    def __call__(
        self,
        images: Sequence[DrawnImage],
        rows: Sequence[ImageRow],
        check: Callable[[], None],
    ) -> PassedImages:
        check()
        by_index = {row.index_in_part: row for row in rows}
        passed = [
            image if image.rgb is None else self._pass(image, by_index[image.index_in_part])
            for image in map(mark_flat, images)
        ]
        return PassedImages(passed, {"over": 1.0})

    def _pass(self, image: DrawnImage, row: ImageRow) -> DrawnImage:
        if process_number() and mood(row, "pass") < FAILING_PASSES:
            error = "RuntimeError: cannot pass this time"
            return replace(image, rgb=None, status="failed", error=error)
        assert image.rgb is not None
        return replace(image, rgb=255 - image.rgb)

    def close(self) -> None:
        """End nothing."""


# --- What processes do ----------------------------------------------------------------------------


def work(uri: str, shard: int) -> None:
    """Make a shard of a run, then help with others."""
    run = open_run(uri)
    plan = run.addressed_plan
    if not plan.shards:  # earlier nights have all images
        return
    number = shard % len(plan.shards)
    stop = Stop()
    with meter_attempt(run, plan, NoProgress(), stop, shards=[number]) as meter:
        generate_and_help(run.store, plan, number, partial(painter_of, plan), meter, stop)


def retry(uri: str, include_permanent: bool) -> None:
    """Make a retry of a run, or what is left of it."""
    _, plan = announce_retry(open_run(uri), include_permanent=include_permanent)
    if plan is None:
        aggregate(uri)
        return
    address = retry_address(uri, plan.retry)
    make_retry(address)
    aggregate(address)


def make_retry(address: str) -> None:
    """Make what is missing of a retry."""
    for number in range(len(open_run(address).addressed_plan.shards)):
        work(address, number)


def finish_night(job: Job, *, meanwhile: Callable[[], None] = lambda: None) -> Plan:
    """Do all that a night needs, with nothing in the way.

    `meanwhile` is what happens between a retry and its aggregation.
    """
    run = make_plan(job)
    for shard in range(len(run.plan.shards)):
        work(run.uri, shard)
    for _ in range(MAX_RETRIES):
        with suppress(Incomplete):
            aggregate(run.uri)
        _, plan = announce_retry(open_run(run.uri))
        if plan is None:
            break
        make_retry(retry_address(run.uri, plan.retry))
        meanwhile()
    aggregate(run.uri)
    return run.plan


def write_no_report(store: Store, *_: object, **__: object) -> None:
    """Leave a page without pictures: reports are no part of the protocol."""
    store.replace(REPORT_KEY, b"<html></html>\n")


@contextmanager
def without_reports() -> Iterator[pytest.MonkeyPatch]:
    """While the block runs, reports, which are no part of it, are not made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregate_step, "write_report", write_no_report)
        yield patch
