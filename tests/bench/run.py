r"""Images per second of a whole job, beside bare loops over the same pipeline and a Ray Data job.

    python tests/bench/run.py --images 320 --rounds 3
    python tests/bench/run.py --images 320 --rounds 3 --ray     # needs `pip install ray[data]`
    python tests/bench/run.py --model sdxl --device cuda --dtype bfloat16 --compile \
        --images 512 --naive-images 32

Each contender runs in a process of its own, in turn, several rounds:

bare       only denoises and decodes the same batches: prompts are encoded before the clock starts
naive      calls the pipeline with one prompt after another, and saves each image as a PNG
ray        a `map_batches` job that writes Parquet
imagekiln  the whole job, everything written
"""

import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import click

sys.path.append(str(Path(__file__).parents[2]))

from tests.bench import random_models
from tests.bench.contenders import Took, measure
from tests.bench.limit import Limit, measure_limit
from tests.bench.measure import table
from tests.bench.processes import in_child
from tests.bench.work import Untyped, Work

CONTENDERS = ("bare", "naive", "imagekiln")
HEADER = (
    "",
    "whole, images/s",
    "imagekiln is",
    "steady, images/s",
    "imagekiln is",
    "share of limit",
    "head, s",
    "tail, s",
)


def rounds(
    contenders: tuple[str, ...], count: int, work: Work, naive_images: int
) -> Iterator[dict[str, Took]]:
    """Seconds of every contender by round. Each round begins with another contender."""
    fewer = replace(work, images=min(naive_images, work.images))
    for number in range(count):
        turn = contenders[number % len(contenders) :] + contenders[: number % len(contenders)]
        yield {name: measure(name, fewer if name == "naive" else work) for name in turn}


def format_medians(results: list[dict[str, Took]], limit: Limit) -> str:
    """The medians of all rounds, as a table."""
    return table(HEADER, [_line(name, results, limit) for name in results[0]])


def _line(name: str, results: list[dict[str, Took]], limit: Limit) -> tuple[str, ...]:
    ours = [result["imagekiln"] for result in results]
    theirs = [result[name] for result in results]
    pairs = list(zip(ours, theirs, strict=True))
    rate = statistics.median(took.rate for took in theirs)
    ratio = statistics.median(one.rate / other.rate for one, other in pairs)
    steady = statistics.median(took.phases.steady_rate for took in theirs)
    steady_ratio = statistics.median(
        one.phases.steady_rate / other.phases.steady_rate for one, other in pairs
    )
    return (
        name,
        f"{rate:.3f}",
        f"{ratio:.3f} x",
        f"{steady:.3f}",
        f"{steady_ratio:.3f} x",
        f"{100 * limit.share(steady):.1f} %",
        f"{statistics.median(took.phases.head for took in theirs):.1f}",
        f"{statistics.median(took.phases.tail for took in theirs):.1f}",
    )


def work_of(model: str, folder: Path, **options: Untyped) -> Work:
    """The work of the options, with the model's own settings where an option is absent."""
    own = random_models.SETTINGS[model]
    plain = Work(
        in_child(random_models.local, model, folder),
        0,
        own.batch,
        own.side,
        own.steps,
        own.guidance,
    )
    return replace(plain, **{name: value for name, value in options.items() if value is not None})


def machine(work: Work) -> str:
    """The machine and the work, in two lines."""
    libraries = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "diffusers", "transformers")
    )
    where = (
        f"{platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, {work.device}"
    )
    what = (
        f"{work.images} images of {work.side} x {work.side}, "
        f"{work.steps} steps, batches of {work.batch}"
    )
    modes = [work.dtype, *(["compiled"] if work.compile else []), *(["fp8"] if work.fp8 else [])]
    return f"{where}, Python {platform.python_version()}, {libraries}\n{what}, {', '.join(modes)}"


@click.command()
@click.option(
    "--model",
    type=click.Choice(random_models.NAMES),
    default="shapes",
    show_default=True,
    help="The bundled model, or one of random weights in real or tiny shapes.",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    help="The folder that keeps models of random weights.",
)
@click.option(
    "--images", default=512, show_default=True, help="Images in the job, a multiple of the batch."
)
@click.option(
    "--naive-images",
    default=1 << 30,
    help="The maximum of them in the naive loop; all by default.",
)
@click.option("--batch", type=int, help="Images in a batch; the model's own where absent.")
@click.option("--side", type=int, help="Width and height in pixels; the model's own where absent.")
@click.option("--steps", type=int, help="Denoising steps; the model's own where absent.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where to draw.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="The dtype of the model.",
)
@click.option(
    "--compile", "compiled", is_flag=True, help="Compile, in the bare loop and in the job."
)
@click.option("--fp8", is_flag=True, help="Compute the denoiser in fp8, in the job only.")
@click.option(
    "--rounds", "count", default=3, show_default=True, help="How often each contender runs."
)
@click.option("--ray", is_flag=True, help="Measure Ray Data too.")
def main(
    model: str,
    models: Path | None,
    images: int,
    naive_images: int,
    batch: int | None,
    side: int | None,
    steps: int | None,
    device: str,
    dtype: str,
    compiled: bool,
    fp8: bool,
    count: int,
    ray: bool,
) -> None:
    """Print median rates, Imagekiln's multiple of them, and shares of the device's limit."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as folder:
        work = work_of(
            model,
            models or Path(folder),
            images=images,
            batch=batch,
            side=side,
            steps=steps,
            device=device,
            dtype=dtype,
            compile=compiled,
            fp8=fp8,
        )
        click.echo(machine(work))
        contenders = (*CONTENDERS, "ray") if ray else CONTENDERS
        results = list(rounds(contenders, count, work, naive_images))
        click.echo(format_medians(results, in_child(measure_limit, work)))


if __name__ == "__main__":
    main()
