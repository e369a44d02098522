"""Whole jobs on a GPU: rates beside bare loops, fp8, cold starts, memory growth and tuning.

    python tests/bench/gpu.py --model sdxl --models /tmp/models
    python tests/bench/gpu.py --model flux --models /tmp/models --only rates --only fp8
    python tests/bench/gpu.py --model tiny-sdxl --device cpu --dtype float32  # a trial: minutes

The models have real shapes and random weights, so nothing is downloaded: see random_models.py. The
output is raw figures; every ratio compares contenders of the same run. Nothing else may use the
device meanwhile.
"""

import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.generate import step
from imagekiln.steps.generate.diffusion.device import is_out_of_memory
from imagekiln.steps.local import run
from imagekiln.steps.runs.stats import StageSeconds
from tests.bench import random_models
from tests.bench.contenders import measure
from tests.bench.limit import measure_limit
from tests.bench.measure import apart, table
from tests.bench.run import CONTENDERS, format_medians, machine, rounds, work_of
from tests.bench.watch import sample_memory
from tests.bench.work import Work, job

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # what a fresh pod has none of
BATCHES = (1, 2, 4, 8, 16, 32)
BATCHES_PER_SIZE = 3
MEMORY_STEPS = 4
FIRST = 4  # samples until when memory may still grow


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    work: Work
    rounds: int
    naive_images: int
    memory_images: int


def rates(options: Options) -> str:
    """The whole job beside bare and naive loops, and their shares of the device's limit."""
    results = list(rounds(CONTENDERS, options.rounds, options.work, options.naive_images))
    return format_medians(results, apart(measure_limit, replace(options.work, compile=False)))


def fp8(options: Options) -> str:
    """What fp8 adds to the whole job."""
    if options.work.device != "cuda" or options.work.dtype != "bfloat16":
        return "Not measured: it takes CUDA and bfloat16."
    eight = replace(options.work, compile=True, fp8=True)  # first, for a device may not have it
    pairs = [
        (measure("imagekiln", eight), measure("imagekiln", options.work))
        for _ in range(options.rounds)
    ]
    lines = []
    for eight_bit, plain in pairs:
        ratio = eight_bit.drawing_rate / plain.drawing_rate
        lines.append(
            (f"{plain.drawing_rate:.3f}", f"{eight_bit.drawing_rate:.3f}", f"{ratio:.3f} x")
        )
    return table(("images/s", "with fp8", "ratio"), lines)


def cold(options: Options) -> str:
    """Pod starts: with an empty compile cache, with a filled one, and without compiling."""
    work = replace(options.work, images=options.work.batch)
    lines = []
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as folder:
        for place, what in enumerate(("empty cache", "filled cache", "not compiled")):
            variant = replace(work, compile=work.compile and what != "not compiled")
            with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as caches:
                fresh = {name: f"{caches}/{name}" for name in CACHES}
                took = apart(time_first_batch, variant, Path(folder), place, **fresh)
            lines.append(
                (what, *(f"{value:.1f}" for value in (took.load, took.compile, took.total)))
            )
    return table(("compiled code", "load, s", "compile, s", "first batch written, s"), lines)


def time_first_batch(work: Work, folder: Path, place: int) -> StageSeconds:
    """Stage times of a job of one batch in a fresh process."""
    _ = step
    return run(job(work, folder, first_seed=place * work.images)).summary.seconds


def memory(options: Options) -> str:
    """Memory while many images are made, each of few steps: more would take time, not memory."""
    work = replace(
        options.work, images=options.memory_images, steps=min(MEMORY_STEPS, options.work.steps)
    )
    samples = apart(sample_memory, work)
    early = samples[min(FIRST, len(samples)) - 1]
    grown = [
        max(getattr(sample, name) for sample in samples) - getattr(early, name)
        for name in ("host", "device")
    ]
    lines = [(f"{sample.images:,}", str(sample.host), str(sample.device)) for sample in samples]
    growth = (
        f"After {early.images:,} images, memory grew by at most {grown[0]} MiB in the process "
        f"and {grown[1]} MiB on the device."
    )
    return f"{table(('images', 'process, MiB', 'device, MiB'), lines)}\n{growth}"


def tune(options: Options) -> str:
    """What `imagekiln tune` picks, beside the bare loop at every batch size that fits."""
    picked = _picked(options.work)
    rates_by_batch = dict[int, float]()
    for batch in sorted({*BATCHES, picked}):
        try:
            rates_by_batch[batch] = measure(
                "bare", replace(options.work, batch=batch, images=BATCHES_PER_SIZE * batch)
            ).drawing_rate
        except RuntimeError as error:  # torch's class for a device that is full is one of these
            if not is_out_of_memory(error):
                raise
            break
    lines = [
        (str(batch), f"{rate:.3f}", "picked" if batch == picked else "")
        for batch, rate in rates_by_batch.items()
    ]
    share = (
        rates_by_batch[picked] / max(rates_by_batch.values())
        if picked in rates_by_batch
        else float("nan")
    )
    conclusion = f"The batch of {picked} has {100 * share:.1f} % of the best rate."
    return f"{table(('batch', 'images/s', ''), lines)}\n{conclusion}"


def _picked(work: Work) -> int:
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as name:
        folder = Path(name)
        settings = job(work, folder).model_dump(mode="json", exclude_unset=True, exclude={"batch"})
        (folder / "job.yaml").write_text(json.dumps(settings))
        command = [
            "tune",
            str(folder / "job.yaml"),
            "--file",
            str(folder / "tuning.yaml"),
            "--output",
            "json",
        ]
        program = [sys.executable, "-m", "imagekiln"]
        done = subprocess.run([*program, *command], check=True, stdout=subprocess.PIPE)
    (entry,) = json.loads(done.stdout)["entries"]
    return int(entry["batch"])


SECTIONS: dict[str, Callable[[Options], str]] = {
    "rates": rates,
    "fp8": fp8,
    "cold": cold,
    "memory": memory,
    "tune": tune,
}


@click.command()
@click.option(
    "--model",
    type=click.Choice(random_models.NAMES),
    default="sdxl",
    show_default=True,
    help="The shapes of the model; the tiny ones are for a trial.",
)
@click.option("--models", type=click.Path(path_type=Path), help="The folder that keeps the models.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([*SECTIONS]),
    help="Nothing but this; may be given again.",
)
@click.option(
    "--images",
    default=256,
    show_default=True,
    help="Images of each contender, a multiple of the batch.",
)
@click.option(
    "--naive-images",
    default=16,
    show_default=True,
    help="The maximum of them in the naive loop.",
)
@click.option(
    "--memory-images", default=5000, show_default=True, help="Images over which memory is watched."
)
@click.option("--batch", type=int, help="Images in a batch; a usual one of the model where absent.")
@click.option("--steps", type=int, help="Denoising steps; the model's own where absent.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cuda",
    show_default=True,
    help="Where to draw.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="bfloat16",
    show_default=True,
    help="The dtype of the model.",
)
@click.option("--plain", is_flag=True, help="Compile nothing.")
@click.option(
    "--rounds", "count", default=1, show_default=True, help="How often each contender runs."
)
def main(
    model: str,
    models: Path | None,
    only: tuple[str, ...],
    images: int,
    naive_images: int,
    memory_images: int,
    batch: int | None,
    steps: int | None,
    device: str,
    dtype: str,
    plain: bool,
    count: int,
) -> None:
    """Print each section's raw figures. One that fails says so, and the next is measured."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as folder:
        work = work_of(
            model,
            models or Path(folder),
            images=images,
            batch=batch,
            steps=steps,
            device=device,
            dtype=dtype,
            compile=not plain,
        )
        click.echo(machine(work))
        options = Options(work, count, naive_images, memory_images)
        done = [_done(name, options) for name in only or SECTIONS]
    if not all(done):
        raise SystemExit(1)


def _done(name: str, options: Options) -> bool:
    click.echo(f"\n{name}: {SECTIONS[name].__doc__}")
    try:
        click.echo(SECTIONS[name](options))
    except Exception:  # noqa: BLE001  # hours of a device are not lost to one section
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    main()
