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
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

import click

sys.path.append(str(Path(__file__).parents[2]))

from tests.bench import random_models
from tests.bench.contenders import Performance, measure
from tests.bench.limit import Limit, measure_limit
from tests.bench.measure import scratch_folder, table
from tests.bench.processes import in_child
from tests.bench.work import Untyped, Work, usual_work

CONTENDERS: tuple[str, ...] = ("bare", "naive", "imagekiln")
LIBRARIES = ("torch", "diffusers", "transformers")
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
) -> Iterator[dict[str, Performance]]:
    """Seconds of every contender by round. Each round begins with another contender."""
    fewer = min(naive_images, work.images)
    works = dict.fromkeys(contenders, work)
    works["naive"] = replace(work, images=fewer)
    for number in range(count):
        first = number % len(contenders)
        order = contenders[first:] + contenders[:first]
        performances: dict[str, Performance] = {}
        for name in order:
            performances[name] = measure(name, works[name])
        yield performances


def format_medians(results: list[dict[str, Performance]], limit: Limit) -> str:
    """The medians of all rounds, as a table."""
    rows: list[tuple[str, ...]] = []
    for contender in results[0]:
        row = _line(contender, results, limit)
        rows.append(row)
    return table(HEADER, rows)


def _line(name: str, results: list[dict[str, Performance]], limit: Limit) -> tuple[str, ...]:
    ours = [result["imagekiln"] for result in results]
    theirs = [result[name] for result in results]
    phases = [performance.phases for performance in theirs]
    rates = [performance.rate for performance in theirs]
    own_rates = [performance.rate for performance in ours]
    ratios = divide_pairs(own_rates, rates)

    steady_rates = [performance.steady_rate for performance in theirs]
    own_steady_rates = [performance.steady_rate for performance in ours]
    steady_ratios = divide_pairs(own_steady_rates, steady_rates)
    steady_rate = median(steady_rates)
    return (
        name,
        f"{median(rates):.3f}",
        f"{median(ratios):.3f} x",
        f"{steady_rate:.3f}",
        f"{median(steady_ratios):.3f} x",
        f"{100 * limit.share(steady_rate):.1f} %",
        f"{median(phase.head for phase in phases):.1f}",
        f"{median(phase.tail for phase in phases):.1f}",
    )


def divide_pairs(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratio of each pair."""
    pairs = zip(ours, theirs, strict=True)
    return [our_rate / their_rate for our_rate, their_rate in pairs]


def machine(work: Work) -> str:
    """The machine and the work, in two lines."""
    load, _, _ = os.getloadavg()
    host = [
        platform.machine(),
        f"{os.cpu_count()} cores",
        f"load {load:.1f}",
        work.device,
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in LIBRARIES),
    ]
    settings = [
        f"{work.images} images of {work.side} x {work.side}",
        f"{work.steps} steps",
        f"batches of {work.batch}",
        work.dtype,
    ]
    if work.compile:
        settings.append("compiled")
    if work.fp8:
        settings.append("fp8")
    return f"{', '.join(host)}\n{', '.join(settings)}"


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
@click.option("--compile", is_flag=True, help="Compile, in the bare loop and in the job.")
@click.option("--fp8", is_flag=True, help="Compute the denoiser in fp8, in the job only.")
@click.option(
    "--rounds", "count", default=3, show_default=True, help="How often each contender runs."
)
@click.option("--ray", is_flag=True, help="Measure Ray Data too.")
def main(
    model: str,
    models: Path | None,
    naive_images: int,
    count: int,
    ray: bool,
    **work_options: Untyped,
) -> None:
    """Print median rates, Imagekiln's multiple of them, and shares of the device's limit."""
    with scratch_folder() as folder:
        path = in_child(random_models.local, model, models or folder)
        work = usual_work(model, **work_options)
        work = replace(work, model=path)
        click.echo(machine(work))
        contenders = CONTENDERS
        if ray:
            contenders = (*contenders, "ray")
        results = list(rounds(contenders, count, work, naive_images))
        limit = in_child(measure_limit, work)
        click.echo(format_medians(results, limit))


if __name__ == "__main__":
    main()
