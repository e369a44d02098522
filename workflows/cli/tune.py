"""The command that measures: which batch size suits the job's model on this machine's device."""

import re

import click

from imagekiln.workflows.cli.options import job_options, output_option

TUNING_FILE = "tuning.yaml"


class SizeParam(click.ParamType[tuple[int, int]]):
    """A size in pixels, such as 1024x768."""

    name = "WxH"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Width and height."""
        found = re.fullmatch(r"(\d{1,5})[xX](\d{1,5})", str(value))
        if found is None:
            self.fail(f"{value!r} is no size. Write width x height, such as 1024x768.", param, ctx)
        return int(found[1]), int(found[2])


@click.command()
@job_options
@click.option(
    "--size",
    "sizes",
    type=SizeParam(),
    multiple=True,
    help="A size to tune for; else the job's default one.",
)
@click.option(
    "--file",
    metavar="FILE",
    help=f"Where to keep it; else batch.tuning, or {TUNING_FILE} beside the job.",
)
@click.option("--again", is_flag=True, help="Measure also what the file has.")
@click.option(
    "--steps",
    type=click.IntRange(2, 1000),
    default=6,
    show_default=True,
    help="Steps drawn at a time.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=15,
    show_default=True,
    help="The most for a size.",
)
@output_option
def tune(
    job: str,
    settings: tuple[str, ...],
    sizes: tuple[tuple[int, int], ...],
    file: str | None,
    again: bool,
    steps: int,
    minutes: float,
    output: str,
) -> None:
    """Find the batch size for the job's model on this machine's device, and keep it in a file."""
    from imagekiln.steps.generate.trial import TrialBudget
    from imagekiln.steps.generate.tune import tune as tune_job
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.cli.text import format_tuning, print_result

    wanted = read_job(job, settings)
    kept = file or wanted.batch.tuning or _default_tuning_file(job)
    effort = TrialBudget(steps=steps, minutes=minutes)
    done = tune_job(
        wanted, kept, sizes, effort, again=again, told=lambda line: print_text(line, err=True)
    )
    print_result(done, output, format_tuning)


def _default_tuning_file(job: str) -> str:
    from imagekiln.steps.storage.uri import BUNDLED_PREFIX

    folder, slash, _ = ("", "", job) if job.startswith(BUNDLED_PREFIX) else job.rpartition("/")
    return f"{folder}{slash}{TUNING_FILE}"
