"""Commands that need no cluster: run, preview, estimate and tune a job on this machine."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import cloup

from imagekiln.workflows.cli import text
from imagekiln.workflows.cli.options import (
    PATH_OR_URI,
    JobArguments,
    dated_job_options,
    examples,
    format_option,
    gpus_option,
    job_options,
    price_option,
    settings_option,
)
from imagekiln.workflows.cli.terminal import print_note, print_plan, print_result, print_text

if TYPE_CHECKING:
    from imagekiln.steps.runtime.signals import Stop

DEMO_JOB = "bundled:demo.yaml"
TUNING_FILE = "tuning.yaml"
STARTER_MODEL = "stabilityai/stable-diffusion-xl-base-1.0"


@cloup.command(
    epilog=examples("imagekiln init prompts.csv", "imagekiln init --model bundled:shapes")
)
@cloup.argument(
    "prompts",
    metavar="[PROMPTS]",
    default="prompts.parquet",
    type=PATH_OR_URI,
    help="The prompts: a path or URI. Default: prompts.parquet.",
)
@cloup.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("job.yaml"),
    show_default=True,
    help="The file to write.",
)
@cloup.option(
    "--model",
    default=STARTER_MODEL,
    show_default=True,
    help="A model of a hub, a folder, or bundled:shapes.",
)
def init(prompts: str, to: Path, model: str) -> None:
    """Write a job file to start from.

    If the prompts are a local file or folder, their columns are written into it.
    """
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.steps.storage.uri import is_remote_uri
    from imagekiln.workflows.cli.starter import read_columns, write_starter_job

    columns = read_columns(prompts)
    if columns is None and not is_remote_uri(prompts):
        print_note(f"{sanitize_line(prompts)}: no such file yet.")
    write_starter_job(to, prompts, model, columns)
    if columns is not None and "prompt" not in columns.ours:
        sentence = f"No column of {prompts} seems to hold prompts."
        print_note(sanitize_line(f"{sentence} Name the one with the prompts in {to}."))
    print_text(f"Wrote {to}. Next: imagekiln estimate {to}")


@cloup.command(
    epilog=examples(
        "imagekiln run job.yaml",
        "imagekiln run job.yaml --set defaults.steps=20 --set output=s3://bucket/images",
        "imagekiln run job.yaml --gpus 2",
        "imagekiln run nightly.yaml --date 2026-11-21 --timezone Europe/Berlin",
    )
)
@dated_job_options
@gpus_option
@format_option
@click.pass_obj
def run(stop: "Stop", request: JobArguments, gpus: int | None) -> None:
    """Run a whole job on this machine; run it again to resume.

    Plans the job, generates on all GPUs, and aggregates. Everything committed before an
    interruption is kept.
    """
    from imagekiln.steps.local import run as run_job
    from imagekiln.steps.runtime.progress import open_progress

    job = request.resolve()
    with open_progress() as progress:
        result = run_job(job, progress, stop, print_plan, gpus)
    print_result(result, text.format_run)


@cloup.command(epilog=examples("imagekiln demo", "imagekiln demo --set output=/tmp/demo"))
@settings_option
@gpus_option
@format_option
@click.pass_context
def demo(ctx: click.Context, settings: tuple[str, ...], gpus: int | None) -> None:
    """Generate the bundled example dataset with the bundled model."""
    ctx.invoke(run, job=DEMO_JOB, settings=settings, gpus=gpus)


@cloup.command(
    epilog=examples("imagekiln preview job.yaml", "imagekiln preview job.yaml --images 48")
)
@dated_job_options
@cloup.option(
    "--images",
    type=click.IntRange(1, 1000),
    default=24,
    show_default=True,
    help="The images to make.",
)
@format_option
@click.pass_obj
def preview(stop: "Stop", request: JobArguments, images: int) -> None:
    """Make a sample of a job's images, and a page of them.

    The sample has every shape, sampler and LoRA, short and long prompts, as far as it is large
    enough. Its images are the run's own: a later run or submit makes the others. Exits with 3 if
    the sample is not as the job's limits and gates ask.
    """
    from imagekiln.steps.local import preview as preview_job
    from imagekiln.steps.runtime.progress import open_progress

    job = request.resolve()
    with open_progress() as progress:
        result = preview_job(job, images, progress, stop, print_plan)
    print_result(result, text.format_preview)


@cloup.command(
    epilog=examples(
        "imagekiln estimate job.yaml",
        "imagekiln estimate job.yaml --price 2.50 --format json",
        "imagekiln estimate nightly.yaml --date 2026-11-21",
    )
)
@dated_job_options
@price_option
@format_option
def estimate(request: JobArguments, price: float | None) -> None:
    """Estimate a job's images, size, hours and cost.

    Reads and validates the prompts as planning does, and writes nothing.
    """
    from imagekiln.steps.job.user_checks import find_untried_entries
    from imagekiln.steps.plan.estimate import estimate as estimate_job
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.workflows.profiles.loader import load_profile

    job = request.resolve()
    profile = load_profile(job.cluster.profile)
    estimated = job
    if profile.names_gpus and job.device == "auto":
        # Times of runs on this machine's CPU do not predict the profile's GPUs.
        estimated = job.model_copy(update={"device": "cuda"})
    result = estimate_job(
        estimated,
        price,
        profile.gpu.count,
        gpu=profile.gpu_name,
        gpu_memory=profile.gpu.memory,
    )
    print_result(result, text.format_estimate)
    for sentence in find_untried_entries(job):
        print_note(sanitize_line(sentence))


def _parse_size(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[int, int], ...]:
    """Parse the width and height of each size, such as 1024x768."""
    sizes = []
    for value in values:
        match = re.fullmatch(r"(\d{1,5})[xX](\d{1,5})", value)
        if match is None:
            message = f"{value!r} is not a size. Write WIDTHxHEIGHT, such as 1024x768."
            raise click.BadParameter(message, ctx, param)
        sizes.append((int(match[1]), int(match[2])))
    return tuple(sizes)


@cloup.command(
    epilog=examples(
        "imagekiln tune job.yaml",
        "imagekiln tune job.yaml --size 1024x1024 --size 832x1216",
    )
)
@job_options
@cloup.option(
    "--size",
    "sizes",
    metavar="WxH",
    callback=_parse_size,
    multiple=True,
    help="An image size to tune for; repeatable. Default: the job's own.",
)
@cloup.option(
    "--file",
    metavar="FILE",
    help=f"The tuning file. Default: the job's batch.tuning, else {TUNING_FILE} next to the job.",
)
@cloup.option("--again", is_flag=True, help="Measure sizes that the file already has, too.")
@format_option
def tune(
    request: JobArguments,
    sizes: tuple[tuple[int, int], ...],
    file: str | None,
    *,
    again: bool,
) -> None:
    """Find the fastest batch size for the job's model on this device.

    Measures growing batches until they gain nothing or do not fit in memory, and writes the
    result to a tuning file that jobs name in batch.tuning.
    """
    from imagekiln.steps.errors import TryAgain
    from imagekiln.steps.generate.start import require_libraries
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.steps.runtime.signals import Stopped

    job = request.read()
    require_libraries(job)
    folder, slash, _ = request.job.rpartition("/")
    path = file or job.batch.tuning or f"{folder}{slash}{TUNING_FILE}"
    try:
        # Imported only here: torch takes seconds.
        from imagekiln.steps.generate.tune import tune as tune_job

        result = tune_job(job, path, sizes, again=again, report=print_note)
    except Stopped as stopped:
        raise TryAgain(
            "Stopped. The same command starts again with the first size that is not in "
            f"{sanitize_line(path)}."
        ) from stopped
    print_result(result, text.format_tuning)


@cloup.command(epilog=examples("imagekiln schema > job.schema.json"))
def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    from imagekiln.steps.job.job import Job

    print_text(json.dumps(Job.model_json_schema(), indent=2))
