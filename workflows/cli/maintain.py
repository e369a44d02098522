"""Commands for ended runs: list, verify, retry, reproduce, compare, clean up."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import cloup

from imagekiln.workflows.cli import text
from imagekiln.workflows.cli.options import (
    PATH_OR_URI,
    examples,
    format_option,
    output_argument,
    run_argument,
)
from imagekiln.workflows.cli.terminal import print_note, print_plan, print_result

if TYPE_CHECKING:
    from imagekiln.steps.runtime.signals import Stop


@cloup.command(epilog=examples("imagekiln runs images", "imagekiln runs s3://bucket/images"))
@output_argument
@format_option
def runs(folder: str) -> None:
    """List the runs under an output, and how each ended."""
    from imagekiln.steps.maintain.run_list import list_runs

    print_result(list_runs(folder), text.format_runs)


@cloup.command(epilog=examples("imagekiln verify images/shapes-1a2b3c4d5e6f"))
@run_argument
@format_option
def verify(run: str) -> None:
    """Read a run back and check every image against the plan.

    Compares images, input images, shards, manifests and lists with their hashes, each row of the
    manifests with its part, and counts the images again. Report, card, times and costs are not
    checked.

    Exits with 3 if anything is missing, damaged or different.
    """
    from imagekiln.steps.maintain import verify as verification

    print_result(verification.verify(run))


@cloup.command(epilog=examples("imagekiln retry images/shapes-1a2b3c4d5e6f"))
@run_argument
@cloup.option(
    "--all",
    "include_permanent",
    is_flag=True,
    help="Also images whose failure a retry does not fix: for instance after an update.",
)
@format_option
@click.pass_obj
def retry(stop: "Stop", run: str, *, include_permanent: bool) -> None:
    """Generate failed, blank and missing images of a run again.

    Missing ones first, as planned. Images that are ok stay as they are. Failures that a retry does
    not fix, such as settings that the model refuses, are skipped.
    """
    from imagekiln.steps.maintain.retry import retry as retry_run
    from imagekiln.steps.runtime.progress import open_progress

    with open_progress() as progress:
        result = retry_run(run, progress, stop, print_plan, include_permanent=include_permanent)
    print_result(result, text.format_retry)


@cloup.command(
    epilog=examples(
        "imagekiln reproduce images/shapes-1a2b3c4d5e6f 0123456789abcdef0123456789abcdef"
    )
)
@run_argument
@cloup.argument(
    "image_id", metavar="IMAGE_ID", help="The image_id in the manifest, or its row's id."
)
@cloup.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. Default: IMAGE_ID.png in the current folder.",
)
@format_option
def reproduce(run: str, image_id: str, to: Path | None) -> None:
    """Generate one image again and compare it with the run's.

    Exits with 3 if the pixels differ.
    """
    from imagekiln.steps.errors import Incomplete
    from imagekiln.steps.maintain.reproduce import reproduce as reproduce_image

    result = reproduce_image(run, image_id, to, report=print_note)
    print_result(result)
    if not result.has_same_pixels:
        click.get_current_context().exit(Incomplete.exit_code)


@cloup.command(epilog=examples("imagekiln diff images/before images/after --to comparison"))
@cloup.argument("first", metavar="RUN", type=PATH_OR_URI, help="The first run: a path or URI.")
@cloup.argument("second", metavar="RUN", type=PATH_OR_URI, help="The second run: a path or URI.")
@cloup.option(
    "--to",
    required=True,
    metavar="FOLDER",
    help="The folder or URI to write the page and its images to.",
)
@format_option
def diff(first: str, second: str, to: str) -> None:
    """Compare two runs of the same prompts, with a page of image pairs."""
    from imagekiln.steps.maintain.diff import diff as diff_runs

    print_result(diff_runs(first, second, to))


@cloup.command(epilog=examples("imagekiln gc images", "imagekiln gc s3://bucket/images --remove"))
@output_argument
@cloup.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=7.0,
    show_default=True,
    metavar="DAYS",
    help="Only if nothing was written for this many days.",
)
@cloup.option("--remove", is_flag=True, help="Remove what is listed.")
@format_option
def gc(folder: str, older_than: float, *, remove: bool) -> None:
    """List, or remove, unfinished runs under an output.

    A run that was finished is never removed. Of a removed one, the plan and the commits stay, which
    say so: its run id is not used again.
    """
    from imagekiln.steps.maintain.gc import gc as collect_garbage

    print_result(collect_garbage(folder, older_than, remove=remove), text.format_garbage)


@cloup.command(
    epilog=examples("imagekiln gallery images", "imagekiln gallery s3://bucket/images --port 0")
)
@output_argument
@cloup.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="The port to serve on; 0 for any free one.",
)
@cloup.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to serve at. Any other than this one lets others see the images.",
)
def gallery(folder: str, port: int, host: str) -> None:
    """Show the images of runs and trends in a browser.

    The page searches prompts, filters by any column and sorts by any number. OUTPUT may also be one
    run. Until Ctrl-C, the page is served to this machine, from an index of the manifests in TMPDIR:
    a gigabyte for ten million images.
    """
    from imagekiln.steps.gallery.server import serve_gallery

    serve_gallery(folder, host, port, print_note)
