"""Images per second of a whole job, against a bare loop over the same pipeline and a Ray Data job.

    python tests/bench/run.py --images 512 --rounds 3
    python tests/bench/run.py --images 512 --rounds 3 --ray     # needs `pip install ray[data]`

Each contender runs in a process of its own, in turn, several rounds. The clock runs from before the model is loaded
to after everything is written; imports are left out. The bare loop keeps its images in memory and writes nothing.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan", "white", "black")
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross")
CONTENDERS = ("bare", "imagekiln")


def prompts(count: int) -> list[str]:
    """Prompts that the bundled model knows, no two neighbours alike."""
    pairs = [(ink, ground) for ink in COLOURS for ground in COLOURS if ink != ground]
    return [
        f"a {pairs[i % len(pairs)][0]} {SHAPES[i % len(SHAPES)]} on a {pairs[i % len(pairs)][1]} background"
        for i in range(count)
    ]


def run_bare(images: int, batch: int, steps: int, _folder: Path) -> float:
    """The loop that everybody writes first: seconds for all images, none of them kept on disk."""
    import torch
    from diffusers import DiffusionPipeline

    from imagekiln.steps.bundled import local

    started = time.perf_counter()
    pipe = DiffusionPipeline.from_pretrained(local("bundled:shapes"), dtype=torch.float32, use_safetensors=True)
    pipe.set_progress_bar_config(disable=True)
    texts, kept = prompts(images), []
    for first in range(0, images, batch):
        generators = [torch.Generator().manual_seed(first + place) for place in range(batch)]
        kept += pipe(
            prompt=texts[first : first + batch],
            generator=generators,
            num_inference_steps=steps,
            guidance_scale=3.0,
            output_type="pt",
        ).images
    return time.perf_counter() - started


def run_imagekiln(images: int, batch: int, steps: int, folder: Path) -> float:
    """The whole job: seconds for plan, generate and aggregate."""
    from imagekiln.steps import generate, run
    from imagekiln.steps.job import Batch, Defaults, Job, Model
    from imagekiln.steps.progress import Silent
    from imagekiln.steps.stop import Stop

    _ = generate  # imported before the clock starts, as torch is in the other contenders
    pq.write_table(pa.table({"prompt": prompts(images), "seed": list(range(images))}), folder / "prompts.parquet")
    job = Job(
        name="bench",
        prompts=str(folder / "prompts.parquet"),
        output=str(folder),
        model=Model(id="bundled:shapes", dtype="float32"),
        defaults=Defaults(steps=steps, guidance=3.0),
        batch=Batch(images=batch),
    )
    started = time.perf_counter()
    done = run.run(job, Silent(), Stop())
    if done.summary.ok != images:
        raise SystemExit(f"only {done.summary.ok} of {images} images are ok")
    return time.perf_counter() - started


def run_ray(images: int, batch: int, steps: int, folder: Path) -> float:
    """The same batches as a Ray Data job that writes Parquet: seconds, Ray's own start left out."""
    import ray

    from tests.bench.ray_job import write_dataset

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    started = time.perf_counter()
    write_dataset(prompts(images), batch, steps, folder / "ray")
    return time.perf_counter() - started


RUNNERS = {"bare": run_bare, "imagekiln": run_imagekiln, "ray": run_ray}


def measure(contender: str, images: int, batch: int, steps: int) -> float:
    """Images per second of one contender, in a process of its own."""
    options = ["--images", str(images), "--batch", str(batch), "--steps", str(steps), "--contender", contender]
    command = [sys.executable, __file__, *options]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    seconds: float = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return images / seconds


def rounds(contenders: tuple[str, ...], count: int, images: int, batch: int, steps: int) -> Iterator[dict[str, float]]:
    """Rates of every contender, round after round, each round beginning with another one."""
    for number in range(count):
        turn = contenders[number % len(contenders) :] + contenders[: number % len(contenders)]
        yield {contender: measure(contender, images, batch, steps) for contender in turn}


@click.command()
@click.option("--images", default=512, show_default=True, help="Images in the job, a multiple of the batch.")
@click.option("--batch", default=8, show_default=True, help="Images in a batch.")
@click.option("--steps", default=20, show_default=True, help="Denoising steps.")
@click.option("--rounds", "count", default=3, show_default=True, help="How often each contender runs.")
@click.option("--ray", is_flag=True, help="Measure Ray Data too.")
@click.option(
    "--contender", type=click.Choice([*RUNNERS]), help="Run one contender here; used by the benchmark itself."
)
def main(images: int, batch: int, steps: int, count: int, ray: bool, contender: str | None) -> None:
    """Print each contender's median rate, and ours as a share of it."""
    if contender:
        with tempfile.TemporaryDirectory() as folder:
            click.echo(json.dumps({"seconds": RUNNERS[contender](images, batch, steps, Path(folder))}))
        return
    contenders = (*CONTENDERS, "ray") if ray else CONTENDERS
    found = list(rounds(contenders, count, images, batch, steps))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "diffusers", "transformers"))
    click.echo(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {libraries}")
    click.echo(f"{images} images of 64 x 64, {steps} steps, batches of {batch}, {count} rounds; medians")
    for name in contenders:
        rate = statistics.median(each[name] for each in found)
        ratio = statistics.median(each["imagekiln"] / each[name] for each in found)
        click.echo(f"{name:<10}{rate:8.2f} images/s   imagekiln is {ratio:.3f} times as fast")


if __name__ == "__main__":
    main()
