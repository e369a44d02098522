"""Small runs of a tiny random model: planned, finished, or with parts of any outcome."""

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import Png
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.local import run as run_job
from imagekiln.steps.maintain.retry import announce_retry
from imagekiln.steps.models.facts import default_steps
from imagekiln.steps.models.resolve import resolve_model
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.attempts import merge_stats, read_attempts
from imagekiln.steps.runs.commits import NO_COMMIT, Head, create_commit
from imagekiln.steps.runs.image import DrawnImage, EncodedImage, ImageParameters, ImageRow
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.runs.parts import Part, pack_part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.registry import RunEntry, append_run_entry
from imagekiln.steps.runs.run import open_run, read_shard_manifest
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.stats import RunRate, ShardStats
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.tiny import SIDE, tiny_model
from tests.tiny import scratch as temporary

Rows = Iterable[Mapping[str, object]]
# LCM's scheduler takes its steps from 50: such a row is planned, and fails when it is drawn.
UNDRAWABLE = {"sampler": "lcm", "steps": 60}
DRAWABLE = {"sampler": None, "steps": None}
IMAGES = 20  # of the finished run: shards of 8, 8 and 4, in parts of 4
PROMPTS = tuple(
    {"prompt": f"a red circle number {place}", "id": f"row-{place}"} for place in range(IMAGES)
)


def image_row(prompt: str = "a red circle", place: int = 0, **settings: object) -> ImageRow:
    """One image to draw, with the settings of the tiny models unless others are given."""
    plain: dict[str, object] = {
        "negative_prompt": "",
        "seed": place,
        "width": SIDE,
        "height": SIDE,
        "steps": 2,
        "guidance": 3.0,
        "sampler": "default",
    }
    pixels = ImageParameters(prompt, **{**plain, **settings})  # type: ignore[arg-type]  # checked by what the tests then draw
    return ImageRow(place, f"{place:032x}", pixels)


def write_prompts(path: Path, rows: Rows = PROMPTS) -> Path:
    """Prompt rows as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    return path


def settings(prompts: Path, output: str, **changes: object) -> dict[str, object]:
    """The settings of a small job, as a job file has them."""
    plain: dict[str, object] = {
        "name": "tiny",
        "prompts": str(prompts),
        "output": output,
        "model": {"id": str(tiny_model()), "dtype": "float32"},
        "defaults": {"steps": 2, "guidance": 3.0, "seed": 7},
        "batch": {"images": 4},
        "part": {"images": 4},
        "shard": {"images": 8},
        "device": "cpu",
    }
    return plain | changes


def job(prompts: Path, output: str, **changes: object) -> Job:
    """A small job on the CPU."""
    return validate_job(settings(prompts, output, **changes))


def planned(scratch: Path, output: str, rows: Rows = PROMPTS, **changes: object) -> PlanResult:
    """A planned run under `output`, its prompts being written to `scratch`."""
    return make_plan(job(write_prompts(scratch / "prompts.parquet", rows), output, **changes))


def finished(target: Path) -> Store:
    """A finished run in a folder of its own: a copy of one that was made for all tests."""
    shutil.copytree(_finished(), target)
    return open_store(str(target))


@cache
def _finished() -> Path:
    scratch = temporary("finished")
    prompts = write_prompts(scratch / "prompts.parquet")
    return Path(run_job(job(prompts, str(scratch / "out")), NoProgress(), Stop()).uri)


def picture(place: int = 0, side: int = SIDE) -> DrawnImage:
    """A picture of noise, another one for each place."""
    rgb = np.random.default_rng(place).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return DrawnImage(place, rgb)


def encoded(place: int = 0) -> EncodedImage:
    """A picture of noise as it is stored."""
    return encode_drawn_image(picture(place), Png())


def not_ok(
    place: int, status: str = "failed", error: str = "RuntimeError: a fault"
) -> EncodedImage:
    """An image that did not become one."""
    return encode_drawn_image(DrawnImage(place, None, status, error), Png())  # type: ignore[arg-type]  # any status will do


def fill(run: PlanResult, outcomes: Mapping[int, EncodedImage] | None = None) -> list[Part]:
    """Write every part of a planned run: noise, or `outcomes` by the index in the run."""
    store = open_store(run.uri)
    parts = list[Part]()
    start = 0
    for number in range(len(run.plan.shards)):
        for part in read_shard(store, run.plan, number):
            images = [
                (outcomes or {}).get(start + place) or encoded(place)
                for place in range(part.rows.num_rows)
            ]
            pack_part(part, renumbered(images)).commit(store)
            parts.append(part)
            start += part.rows.num_rows
    return parts


def begin_retry(run: PlanResult) -> Plan:
    """Announce the next retry of a run, and return its plan."""
    _, plan = announce_retry(open_run(run.uri))
    assert plan is not None
    return plan


def retried(run: PlanResult, outcomes: Mapping[int, EncodedImage], mended: EncodedImage) -> str:
    """The URI of a planned run, made with these outcomes; a retry made the failed one again."""
    fill(run, outcomes)
    with suppress(Incomplete):
        aggregate(run.uri)
    again = begin_retry(run)
    store = open_store(run.uri)
    (part,) = read_shard(store, again, 0)
    pack_part(part, renumbered([mended])).commit(store)
    aggregate(run.uri)
    return run.uri


def stats_of(uri: str, number: int = 0) -> ShardStats | None:
    """The statistics of a shard of a run, over all attempts; None if it has none."""
    every = merge_stats(read_attempts(open_store(uri)))
    return next((each for each in every if each.shard == number), None)


def manifest_of(uri: str) -> pa.Table:
    """The manifest of a run, that of one shard after the other."""
    run = open_run(uri)
    shards = range(len(run.plan.shards))
    return pa.concat_tables([read_shard_manifest(run, number) for number in shards])


def renumbered(images: list[EncodedImage]) -> list[EncodedImage]:
    """The images as those of one part."""
    return [replace(image, index_in_part=place) for place, image in enumerate(images)]


def write_rate(
    job: Job, run_id: str, *, images: int, seconds_per_image: float, device: str = "cpu"
) -> None:
    """Leave a finished run under the job's output that took so long, as its images do."""
    facts = resolve_model(job).facts
    rate = RunRate(
        run_id=run_id,
        digest=facts.digest,
        dtype=job.model.dtype,
        speed=job.speed,
        device=device,
        images=images,
        work=float(images * SIDE * SIDE * default_steps(job, facts)),
        shards=1,
        working_seconds=images * seconds_per_image,
        loading_seconds=0.0,
    )
    store = open_store(f"{job.output}/{run_id}")
    create_commit(store, Head(), replace(NO_COMMIT, rate=rate))
    store.replace(SUCCESS_KEY, b"")
    append_run_entry(job.output, RunEntry(run_id, job.name))
