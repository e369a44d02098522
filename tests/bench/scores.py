"""Images per second without scores, with them, and with the best of four, in one run.

    python -m tests.bench.scores --images 64 --repeats 3
    python -m tests.bench.scores --clip openai/clip-vit-large-patch14 --model stabilityai/sdxl-turbo

Without options, the models are tiny ones of random weights beside the bundled model: the figures
show what preparing images, queues and bookkeeping cost. Each way is measured once in each round,
one after the other, so that a busy machine slows all of them down. Loading does not count.
"""

from pathlib import Path
from statistics import median

import click
import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.generate.step import LazyDenoiser, generate_shard
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.bench.measure import scratch_folder
from tests.scorers import classifier_folder, clip_folder

CANDIDATES = 4


def make(folder: Path, job: Job) -> ShardStats:
    """Make all images of a job, which are one shard, and return its statistics."""
    run = make_plan(job.model_copy(update={"output": str(folder)}))
    store = open_store(run.uri)
    denoiser = LazyDenoiser(store, run.plan)
    stats = generate_shard(store, run.plan, 0, denoiser, NoProgress(), Stop())
    denoiser.close()
    if stats is None:
        raise SystemExit("nothing was made")
    return stats


def jobs(
    prompts: Path, model: str, dtype: str, steps: int, clip: str, classifier: str
) -> dict[str, Job]:
    """The ways to make the images, by what they are called."""
    settings: dict[str, object] = {
        "name": "scores",
        "prompts": str(prompts),
        "output": "out",
        "model": {"id": model, "dtype": dtype},
        "defaults": {"steps": steps},
        "batch": {"images": 8},
        "part": {"images": 32},
        "shard": {"images": 100_000},
    }
    clip_score = {"clip_score": {"kind": "clip_score", "id": clip}}
    nsfw = {"nsfw": {"kind": "classifier", "id": classifier, "label": "nsfw"}}
    keep = f"best 1 of {CANDIDATES} by clip_score"
    ways: dict[str, dict[str, object]] = {
        "no scores": {},
        "clip_score": {"scores": clip_score},
        "clip_score, nsfw": {"scores": clip_score | nsfw},
        "best of four": {"scores": clip_score, "keep": keep},
    }
    return {name: Job.model_validate({**settings, **way}) for name, way in ways.items()}


@click.command()
@click.option("--images", default=64, show_default=True, help="Prompts, of one image each.")
@click.option("--repeats", default=3, show_default=True, help="Rounds; the median counts.")
@click.option("--model", default="bundled:shapes", show_default=True, help="What draws.")
@click.option("--dtype", default="float32", show_default=True, help="In which numbers.")
@click.option("--steps", default=4, show_default=True, help="Of each image.")
@click.option("--clip", default=None, help="A CLIP model; a tiny one of random weights.")
@click.option("--classifier", default=None, help="A classifier with the label nsfw; likewise.")
def main(
    images: int,
    repeats: int,
    model: str,
    dtype: str,
    steps: int,
    clip: str | None,
    classifier: str | None,
) -> None:
    """Print how many images each way draws in a second, beside that without scores."""
    with scratch_folder() as folder:
        prompts = folder / "prompts.parquet"
        texts = [f"a red circle number {number}" for number in range(images)]
        pq.write_table(pa.table({"prompt": texts}), prompts)
        clip = clip or str(clip_folder())
        classifier = classifier or str(classifier_folder())
        ways = jobs(prompts, model, dtype, steps, clip, classifier)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        shares: dict[str, float] = {}
        for number in range(repeats):
            for name, job in ways.items():
                stats = make(folder / f"{number}-{name}", job)
                rates[name].append(stats.images / stats.working_seconds)
                shares[name] = stats.seconds.score / stats.working_seconds
    plain = median(rates["no scores"])
    for name, measured in rates.items():
        rate = median(measured)
        print(
            f"{name:18}{rate:10.2f} images/s drawn   {rate / plain:6.2f} of no scores"
            f"   scoring {shares[name]:5.0%} of the time, beside drawing"
        )


if __name__ == "__main__":
    main()
