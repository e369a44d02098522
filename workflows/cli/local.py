"""Commands that need no cluster: a whole job on this machine, and what to know before it runs."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import cloup

from imagekiln.workflows.cli.options import (
    PATH_OR_URI,
    date_options,
    examples,
    format_option,
    gpus_option,
    job_options,
    settings_option,
)

if TYPE_CHECKING:
    from imagekiln.steps.job.job import Job
    from imagekiln.steps.runtime.signals import Stop
    from imagekiln.workflows.pod.request import JobRequest

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

    Where the prompts are a local file or folder, their columns are written into it.
    """
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.steps.storage.filesystem import describe_missing_extra
    from imagekiln.steps.storage.uri import is_remote_uri
    from imagekiln.workflows.cli.starter import write_starter_job
    from imagekiln.workflows.cli.table_survey import survey_tables
    from imagekiln.workflows.cli.terminal import print_note, print_text

    survey = survey_tables(prompts)
    if survey is None and not is_remote_uri(prompts):
        print_note(f"{sanitize_line(prompts)}: no such file yet.")
    if missing_extra := describe_missing_extra(prompts):
        print_note(sanitize_line(missing_extra))
    write_starter_job(to, prompts, model, survey)
    if survey is not None and "prompt" not in survey.columns:
        sentence = f"No column of {prompts} seems to hold prompts."
        print_note(sanitize_line(f"{sentence} Name the one with the prompts in {to}."))
    print_text(f"Wrote {to}. Next: imagekiln estimate {to}")
    for reason in () if survey is None else survey.reasons:
        print_note(sanitize_line(reason))


@cloup.command(
    epilog=examples(
        "imagekiln run job.yaml",
        "imagekiln run job.yaml --set defaults.steps=20 --set output=s3://bucket/images",
        "imagekiln run job.yaml --gpus 2",
        "imagekiln run nightly.yaml --date 2026-11-21 --timezone Europe/Berlin",
    )
)
@job_options
@date_options
@gpus_option
@format_option
@click.pass_obj
def run(
    stop: "Stop",
    job: str,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    gpus: int | None,
    output_format: str,
) -> None:
    """Run a whole job on this machine; run it again to resume.

    Plans the job, generates on all GPUs, and aggregates. Everything committed before an
    interruption is kept.
    """
    request = _job_request(job, settings, date, timezone)
    _run_job(request, gpus, output_format, stop)


@cloup.command(epilog=examples("imagekiln demo", "imagekiln demo --set output=/tmp/demo"))
@settings_option
@gpus_option
@format_option
@click.pass_obj
def demo(stop: "Stop", settings: tuple[str, ...], gpus: int | None, output_format: str) -> None:
    """Generate the bundled example dataset with the bundled model."""
    _run_job(_job_request(DEMO_JOB, settings), gpus, output_format, stop)


def _job_request(
    name: str, settings: tuple[str, ...], date: str = "", timezone: str = ""
) -> "JobRequest":
    from imagekiln.workflows.pod.request import JobRequest

    return JobRequest(name, settings=settings, date=date, timezone=timezone)


def _run_job(request: "JobRequest", gpus: int | None, output_format: str, stop: "Stop") -> None:
    from imagekiln.steps.local import run as run_job
    from imagekiln.steps.runtime.progress import open_progress
    from imagekiln.workflows.cli.plan_text import print_plan
    from imagekiln.workflows.cli.text import format_run, print_result
    from imagekiln.workflows.pod.request import resolve_job

    job = resolve_job(request)
    with open_progress() as progress:
        result = run_job(job, progress, stop, print_plan, gpus)
    print_result(result, output_format, format_run)


@cloup.command(
    epilog=examples("imagekiln preview job.yaml", "imagekiln preview job.yaml --images 48")
)
@job_options
@date_options
@cloup.option(
    "--images",
    type=click.IntRange(1, 1000),
    default=24,
    show_default=True,
    help="The images to make.",
)
@format_option
@click.pass_obj
def preview(
    stop: "Stop",
    job: str,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    images: int,
    output_format: str,
) -> None:
    """Make a sample of a job's images, and a page of them.

    The sample has every shape, sampler and LoRA, short and long prompts, as far as it is large
    enough. Its images are the run's own: a later run or submit makes the others. Exits with 3
    where the sample is not as the job's limits and gates ask.
    """
    from imagekiln.steps.local import preview as preview_job
    from imagekiln.steps.runtime.progress import open_progress
    from imagekiln.workflows.cli.plan_text import print_plan
    from imagekiln.workflows.cli.text import format_preview, print_result
    from imagekiln.workflows.pod.request import resolve_job

    previewed = resolve_job(_job_request(job, settings, date, timezone))
    with open_progress() as progress:
        result = preview_job(previewed, images, progress, stop, print_plan)
    print_result(result, output_format, format_preview)


@cloup.command(
    epilog=examples(
        "imagekiln estimate job.yaml",
        "imagekiln estimate job.yaml --price 2.50 --format json",
        "imagekiln estimate nightly.yaml --date 2026-11-21",
    )
)
@job_options
@date_options
@cloup.option(
    "--price",
    type=click.FloatRange(min=0),
    help="The price of a GPU-hour, in place of the job's own.",
)
@format_option
def estimate(
    job: str,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    price: float | None,
    output_format: str,
) -> None:
    """Estimate a job's images, size, hours and cost.

    Reads and validates the prompts as planning does, and writes nothing.
    """
    from imagekiln.steps.plan.estimate import estimate as estimate_job
    from imagekiln.workflows.cli.plan_text import (
        format_estimate,
        format_passes,
        format_scores,
        print_untried_entries,
    )
    from imagekiln.workflows.cli.terminal import print_note
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.pod.request import resolve_job
    from imagekiln.workflows.profiles.loader import load_profile

    estimated_job = resolve_job(_job_request(job, settings, date, timezone))
    profile = load_profile(estimated_job.cluster.profile)
    if profile.names_gpus and estimated_job.device == "auto":
        # What a run took on this machine's CPU says nothing of the profile's GPUs.
        estimated_job = estimated_job.model_copy(update={"device": "cuda"})
    result = estimate_job(
        estimated_job,
        price,
        profile.gpu.count,
        gpu=profile.gpu_name,
        gpu_memory=profile.gpu.memory,
    )
    print_result(result, output_format, format_estimate)
    print_untried_entries(estimated_job)
    _note_missing_key(estimated_job)
    if estimated_job.scores:
        print_note(format_scores(estimated_job).strip())
    if estimated_job.passes:
        print_note(format_passes(estimated_job, result.stored_size).strip())
    if result.hours is not None and result.hours > profile.days * 24:
        print_note(
            f"On a cluster, profile {profile.name} stops a workflow after {profile.days:g} days. "
            "Set more `days` in a profile of your own, or a larger cluster.parallelism."
        )


def _note_missing_key(job: "Job") -> None:
    """Print why this machine cannot sign the job's images: the one that makes them may."""
    from imagekiln.steps.errors import BadInput
    from imagekiln.steps.imaging.c2pa import C2paSigner
    from imagekiln.workflows.cli.terminal import print_note

    if job.c2pa is None:
        return
    try:
        C2paSigner(job.c2pa, job.encoding)
    except BadInput as error:
        print_note(f"Images cannot be signed on this machine. {error}")


class SizeParam(click.ParamType[tuple[int, int]]):
    """A size in pixels, such as 1024x768."""

    name = "WxH"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Width and height."""
        match = re.fullmatch(r"(\d{1,5})[xX](\d{1,5})", str(value))
        if match is None:
            message = f"{value!r} is not a size. Write WIDTHxHEIGHT, such as 1024x768."
            self.fail(message, param, ctx)
        return int(match[1]), int(match[2])


@cloup.command(
    epilog=examples(
        "imagekiln tune job.yaml",
        "imagekiln tune job.yaml --size 1024x1024 --size 832x1216 --minutes 5",
    )
)
@job_options
@cloup.option(
    "--size",
    "sizes",
    type=SizeParam(),
    multiple=True,
    help="An image size to tune for; repeatable. Default: the job's own.",
)
@cloup.option(
    "--file",
    metavar="FILE",
    help=f"The tuning file. Default: the job's batch.tuning, else {TUNING_FILE} next to the job.",
)
@cloup.option("--again", is_flag=True, help="Measure sizes that the file already has, too.")
@cloup.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=15,
    show_default=True,
    help="The time limit for each size.",
)
@format_option
def tune(
    job: str,
    settings: tuple[str, ...],
    sizes: tuple[tuple[int, int], ...],
    file: str | None,
    again: bool,
    minutes: float,
    output_format: str,
) -> None:
    """Find the fastest batch size for the job's model on this device.

    Measures growing batches until they gain nothing or do not fit in memory, and writes the
    result to a tuning file that jobs name in batch.tuning.
    """
    from imagekiln.steps.errors import TryAgain
    from imagekiln.steps.generate.start import require_libraries
    from imagekiln.steps.job.reader import read_job
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.steps.runtime.signals import Stopped
    from imagekiln.workflows.cli.plan_text import format_tuning
    from imagekiln.workflows.cli.terminal import print_note
    from imagekiln.workflows.cli.text import print_result

    tuned_job = read_job(job, settings)
    require_libraries(tuned_job)
    path = file or tuned_job.batch.tuning or default_tuning_file(job)
    try:
        # Imported only now: torch takes seconds.
        from imagekiln.steps.generate.tune import tune as tune_job

        result = tune_job(tuned_job, path, sizes, minutes=minutes, again=again, report=print_note)
    except Stopped as stopped:
        raise TryAgain(
            "Stopped. The same command starts again with the first size that is not in "
            f"{sanitize_line(path)}."
        ) from stopped
    print_result(result, output_format, format_tuning)


def default_tuning_file(job: str) -> str:
    """The tuning file next to a job file; for a bundled job, in the current folder."""
    from imagekiln.steps.storage.uri import BUNDLED_PREFIX

    if job.startswith(BUNDLED_PREFIX):
        return TUNING_FILE
    folder, slash, _ = job.rpartition("/")
    return f"{folder}{slash}{TUNING_FILE}"


@cloup.command(epilog=examples("imagekiln schema > job.schema.json"))
def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    import json

    from imagekiln.steps.job.job import Job
    from imagekiln.workflows.cli.terminal import print_text

    print_text(json.dumps(Job.model_json_schema(), indent=2))
