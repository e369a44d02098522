"""Commands that make a dataset of finished runs, for others to read."""

import click
import cloup

from imagekiln.workflows.cli.options import PATH_OR_URI, examples, format_option


@cloup.command(
    epilog=examples(
        "imagekiln export images exported",
        "imagekiln export s3://bucket/images s3://bucket/shapes-v1 --as webdataset --file-size 1GB",
    )
)
@cloup.argument(
    "source", metavar="RUN_OR_OUTPUT", type=PATH_OR_URI, help="A run, or a job's output with runs."
)
@cloup.argument(
    "destination", metavar="DESTINATION", type=PATH_OR_URI, help="A new folder: a path or URI."
)
@cloup.option(
    "--as",
    "file_format",
    type=click.Choice(["parquet", "webdataset"]),
    default="parquet",
    show_default=True,
    help="The format of the files.",
)
@cloup.option(
    "--file-size",
    default="500MB",
    show_default=True,
    metavar="SIZE",
    help="The most that a file has: 1MB to 4GB.",
)
@cloup.option(
    "--partition-by",
    metavar="COLUMN",
    help="A folder for each value of this column, as Hive lays them out.",
)
@cloup.option(
    "--columns", metavar="NAMES", help="The columns to export, with commas. Default: all."
)
@format_option
def export(
    source: str,
    destination: str,
    file_format: str,
    file_size: str,
    partition_by: str | None,
    columns: str | None,
    output_format: str,
) -> None:
    """Copy the images that are ok into fewer, larger files.

    Each image is compared with its hash. The same command resumes an export that was interrupted.
    """
    from imagekiln.steps.export.settings import read_settings
    from imagekiln.steps.export.step import export as export_images
    from imagekiln.steps.runtime.progress import open_progress
    from imagekiln.workflows.cli.text import format_export, print_result

    names = None if columns is None else columns.split(",")
    settings = read_settings(file_format, file_size, partition_by, names)
    with open_progress() as progress:
        result = export_images(source, destination, settings, progress)
    print_result(result, output_format, format_export)
