"""The commands that look at a run once more: what to make again, how it compares, what may go."""

from pathlib import Path

import click

from imagekiln.workflows.cli.options import output_option


@click.command()
@click.argument("run", metavar="RUN")
@output_option
def retry(run: str, output: str) -> None:
    """Make again what ended failed, blank or missing. Everything else stays as it is."""
    from imagekiln.steps.maintain.retry import retry as retry_run
    from imagekiln.steps.runtime.progress import open_progress
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.cli.text import format_plan, format_retry, print_result

    stop = click.get_current_context().obj
    with open_progress() as progress:
        done = retry_run(
            run, progress, stop, lambda there: print_text(format_plan(there), err=True)
        )
    print_result(done, output, format_retry)


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("image_id", metavar="IMAGE_ID")
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; else IMAGE_ID.png here.",
)
@output_option
def reproduce(run: str, image_id: str, to: Path | None, output: str) -> None:
    """Draw one image again, and say how it compares; the exit code is 3 where its pixels differ."""
    from imagekiln.steps.errors import Incomplete
    from imagekiln.steps.maintain.reproduce import reproduce as reproduce_image
    from imagekiln.workflows.cli.text import format_reproduction, print_result

    done = reproduce_image(run, image_id, to)
    print_result(done, output, format_reproduction)
    if not done.has_same_pixels:
        click.get_current_context().exit(Incomplete.exit_code)


@click.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@click.option(
    "--to",
    required=True,
    metavar="FOLDER",
    help="Where the page and its pictures go: a folder or URI.",
)
@output_option
def diff(first: str, second: str, to: str, output: str) -> None:
    """Compare two runs of the same prompts: numbers, and a page with the pictures side by side."""
    from imagekiln.steps.maintain.diff import diff as diff_runs
    from imagekiln.workflows.cli.text import format_diff, print_result

    print_result(diff_runs(first, second, to), output, format_diff)


@click.command()
@click.argument("folder", metavar="OUTPUT")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=7.0,
    show_default=True,
    metavar="DAYS",
    help="Only where nothing was written for so many days.",
)
@click.option("--remove", is_flag=True, help="Remove what is listed.")
@output_option
def gc(folder: str, older_than: float, remove: bool, output: str) -> None:
    """List what unfinished runs and killed writers left under an output. Nothing is removed unless told."""
    from imagekiln.steps.maintain.gc import gc as collect
    from imagekiln.workflows.cli.text import format_garbage, print_result

    print_result(collect(folder, older_than, remove=remove), output, format_garbage)


MAINTAIN_COMMANDS = (retry, reproduce, diff, gc)
