"""The command that measures: which batch size suits the job's model on this machine's device."""

import re

import click

from imagekiln.workflows.options import job_options, output_option

FILE = "tuning.yaml"


class Size(click.ParamType[tuple[int, int]]):
    """A size in pixels, such as 1024x768."""

    name = "WxH"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Width and height."""
        found = re.fullmatch(r"(\d{1,5})[xX](\d{1,5})", str(value))
        if found is None:
            self.fail(f"{value!r} is no size. Write width x height, such as 1024x768.", param, ctx)
        return int(found[1]), int(found[2])


@click.command()
@job_options
@click.option("--size", "sizes", type=Size(), multiple=True, help="A size to tune for; else the job's default one.")
@click.option("--file", metavar="FILE", help=f"Where to keep it; else batch.tuning, or {FILE} beside the job.")
@click.option("--again", is_flag=True, help="Measure also what the file has.")
@click.option("--steps", type=click.IntRange(2, 1000), default=6, show_default=True, help="Steps drawn at a time.")
@click.option("--minutes", type=click.FloatRange(min=0), default=15, show_default=True, help="The most for a size.")
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
    from imagekiln.steps.jobfile import read_job
    from imagekiln.steps.trial import Effort
    from imagekiln.steps.tune import tune as tune_job
    from imagekiln.workflows.say import say
    from imagekiln.workflows.show import show
    from imagekiln.workflows.show_tuned import tuned

    wanted = read_job(job, settings)
    kept = file or wanted.batch.tuning or _beside(job)
    effort = Effort(steps=steps, minutes=minutes)
    done = tune_job(wanted, kept, sizes, effort, again=again, told=lambda line: say(line, err=True))
    show(done, output, tuned)


def _beside(job: str) -> str:
    from imagekiln.steps.bundled import PREFIX

    folder, slash, _ = ("", "", job) if job.startswith(PREFIX) else job.rpartition("/")
    return f"{folder}{slash}{FILE}"
