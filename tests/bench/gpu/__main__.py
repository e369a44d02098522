"""What a GPU is worth: components alone, whole jobs beside bare loops, faults and starts.

    python -m tests.bench.gpu --call 1                  # one of the calls in calls.py
    python -m tests.bench.gpu --model flux rates fp8    # sections by name
    python -m tests.bench.gpu --model tiny-sdxl --device cpu --dtype float32   # a trial: minutes

The models have real shapes and random weights, so nothing is downloaded: see random_models.py. Each
figure is printed as soon as it is known, beside what it should be, and every ratio compares
contenders of the same run. Nothing else may use the device meanwhile.
"""

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from tests.bench import random_models
from tests.bench.gpu.calls import CALLS, Stage
from tests.bench.gpu.cold import measure_cold
from tests.bench.gpu.decoder import measure_decoder
from tests.bench.gpu.denoiser import measure_denoiser
from tests.bench.gpu.faults import measure_faults
from tests.bench.gpu.machine import measure_machine
from tests.bench.gpu.rates import (
    measure_fp8,
    measure_rates,
    measure_shortcuts,
)
from tests.bench.gpu.report import Report
from tests.bench.gpu.samplers import measure_samplers
from tests.bench.gpu.session import Session
from tests.bench.measure import scratch_folder
from tests.bench.timing import release_memory
from tests.bench.work import Untyped, Work, usual_work

DAY = 86_400.0  # seconds: no budget
DEFAULT_MODEL = "sdxl"
BATCHES = 12
SECTIONS: dict[str, Callable[[Session], None]] = {
    "machine": measure_machine,
    "decoder": measure_decoder,
    "denoiser": measure_denoiser,
    "rates": measure_rates,
    "faults": measure_faults,
    "cold": measure_cold,
    "fp8": measure_fp8,
    "shortcuts": measure_shortcuts,
    "samplers": measure_samplers,
}


def measure_section(name: str, session: Session) -> bool:
    """Measure a section; returns whether it succeeded. One that fails says so."""
    if session.seconds_left() <= 0:
        session.report.note(f"{name}: omitted, the budget is spent.")
        return True
    session.report.section(f"{name}, {session.model}", session.seconds_left())
    try:
        SECTIONS[name](session)
    except Exception as error:  # noqa: BLE001  # minutes of a device are not lost to one section
        traceback.print_exc()
        session.report.note(f"{name}: failed with {type(error).__name__}: {str(error)[:300]}")
        return False
    finally:
        release_memory()
    return True


def make_work(model: str, batches: int, **options: Untyped) -> Work:
    """The work of a model, in its usual settings where an option is None or absent."""
    work = usual_work(model, **options)
    return replace(work, images=batches * work.batch)


def make_stages(call: str | None, model: str | None, sections: tuple[str, ...]) -> list[Stage]:
    """The stages of a call, or one stage with the sections; the model replaces that of a call."""
    if call is None:
        usual = tuple(name for name in SECTIONS if name != "samplers")  # for SD 1.5 alone
        return [Stage(model or DEFAULT_MODEL, sections or usual, DAY)]
    stages = CALLS[call].stages
    return [replace(stage, model=model or stage.model) for stage in stages]


@contextmanager
def models_folder(folder: Path | None) -> Iterator[Path]:
    """The folder of models of random weights, and of the kernels of this sitting."""
    with scratch_folder() as scratch:
        models = folder or scratch
        models.mkdir(parents=True, exist_ok=True)
        # Calls on one machine share kernels; `cold` has caches of its own.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(models.absolute() / "inductor"))
        yield models


@click.command()
@click.argument("sections", nargs=-1, type=click.Choice([*SECTIONS]))
@click.option("--call", type=click.Choice([*CALLS]), help="One of the prepared calls.")
@click.option(
    "--model",
    type=click.Choice(random_models.NAMES[1:]),
    help="The shapes of the model, sdxl by default; the tiny ones are for a trial.",
)
@click.option("--models", type=click.Path(path_type=Path), help="The folder that keeps the models.")
@click.option("--budget", type=float, help="Seconds that all of it may take; a call has its own.")
@click.option(
    "--json", "path", type=click.Path(path_type=Path), help="Append JSON lines to this file."
)
@click.option("--batches", type=int, help=f"Batches of each contender; {BATCHES} by default.")
@click.option("--naive-images", default=4, show_default=True, help="Images of the naive loop.")
@click.option("--batch", type=int, help="Images in a batch; a usual one of the model by default.")
@click.option("--side", type=int, help="Width and height in pixels; the model's own by default.")
@click.option("--steps", type=int, help="Denoising steps; the model's own by default.")
@click.option("--ways", default="", help="Ways of `denoiser`, with commas: see switches.py.")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True, help="Where."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="bfloat16",
    show_default=True,
    help="The dtype of the model.",
)
@click.option("--compile/--plain", default=True, show_default=True, help="Compile in jobs.")
def main(
    sections: tuple[str, ...],
    call: str | None,
    model: str | None,
    models: Path | None,
    budget: float | None,
    path: Path | None,
    batches: int | None,
    naive_images: int,
    ways: str,
    **work_options: Untyped,
) -> None:
    """Measure SECTIONS, or those of a call, or all."""
    report = Report(time.time(), path)
    if call is not None:
        report.note(f"Call {call}: {CALLS[call].answers}")
        budget = budget or CALLS[call].seconds
    successes: list[bool] = []
    with models_folder(models) as folder:
        for stage in make_stages(call, model, sections):
            own = {"steps": stage.steps, "batch": stage.batch}
            given = {name: value for name, value in work_options.items() if value is not None}
            deadline = min(report.started + (budget or DAY), time.time() + stage.seconds)
            session = Session(
                model=stage.model,
                models=folder,
                work=make_work(stage.model, batches or stage.batches or BATCHES, **own | given),
                report=report,
                deadline=deadline,
                naive_images=naive_images,
                ways=tuple(ways.split(",")) if ways else stage.ways,
            )
            successes += [measure_section(name, session) for name in stage.sections]
    report.note("done")
    if not all(successes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
