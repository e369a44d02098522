"""Commands that export, push and take down the images of finished runs."""

from pathlib import Path

import click
import cloup

from imagekiln.workflows.cli import text
from imagekiln.workflows.cli.options import PATH_OR_URI, examples, format_option, source_argument
from imagekiln.workflows.cli.terminal import print_result


@cloup.command(
    epilog=examples(
        "imagekiln export images exported",
        "imagekiln export s3://bucket/images s3://bucket/shapes --as webdataset --file-size 1GB",
    )
)
@source_argument
@cloup.argument(
    "destination",
    metavar="DESTINATION",
    type=PATH_OR_URI,
    help="A new folder, or an export to bring up to date: a path or URI.",
)
@cloup.option(
    "--as",
    "file_format",
    type=click.Choice(["parquet", "arrow", "webdataset", "files"]),
    default="parquet",
    show_default=True,
    help="The format of the files: `files` is a folder of pictures.",
)
@cloup.option(
    "--file-size",
    metavar="SIZE",
    help="The largest size of a file, from 1MB to 4GB; 500MB by default.",
)
@cloup.option(
    "--partition-by",
    metavar="COLUMN",
    help="A folder for each value of this column, as Hive lays them out.",
)
@cloup.option(
    "--columns", metavar="NAMES", help="The columns to export, separated by commas. Default: all."
)
@cloup.option(
    "--newest-by",
    default="image_id",
    show_default=True,
    metavar="COLUMN",
    help="Of images with the same value in this column, export only those of the newest run. "
    "With `id`, the newest version of each edited row.",
)
@cloup.option(
    "--triplets",
    is_flag=True,
    help="Add the input images of each row, for training: input_image, edit_prompt, edited_image.",
)
@format_option
def export(
    source: str,
    destination: str,
    file_format: str,
    file_size: str | None,
    partition_by: str | None,
    columns: str | None,
    newest_by: str,
    *,
    triplets: bool,
) -> None:
    """Copy the images that are ok, once each, to fewer files or pictures.

    Each image is compared with its hash. The same command resumes an export that was interrupted,
    adds images that are new, and drops those that were forgotten or replaced by newer ones.
    """
    from imagekiln.steps.export.settings import read_settings
    from imagekiln.steps.export.step import export as export_images
    from imagekiln.steps.runtime.progress import open_progress

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    settings = read_settings(
        file_format, file_size, partition_by, names, newest_by, triplets=triplets
    )
    with open_progress() as progress:
        result = export_images(source, destination, settings, progress)
    print_result(result)


@cloup.command(
    epilog=examples("imagekiln push shapes hf://datasets/USER/shapes --version v1"),
)
@cloup.argument("folder", metavar="EXPORT", type=PATH_OR_URI, help="A complete export.")
@cloup.argument("repository", metavar="hf://datasets/USER/NAME", help="A dataset of the hub.")
@cloup.option(
    "--version", metavar="TAG", help="Tag this version, so that a training job can refer to it."
)
@cloup.option(
    "--public", is_flag=True, help="Create the dataset as public. An existing one stays as it is."
)
@format_option
def push(folder: str, repository: str, version: str | None, *, public: bool) -> None:
    """Upload an export to a dataset of the Hugging Face hub.

    Needs HF_TOKEN in the environment. The same command resumes what was interrupted.
    """
    from imagekiln.steps.export.push import push as push_export

    print_result(push_export(folder, repository, version, public=public))


@cloup.command(
    epilog=examples(
        'imagekiln forget images --prompt-contains "Jane Doe"',
        "imagekiln forget images --ids takedown.txt --from-export shapes --remove",
    )
)
@source_argument
@cloup.option_group(
    "Which images",
    cloup.option(
        "--id",
        "ids",
        multiple=True,
        metavar="ID",
        help="The image_id of an image, or the id of a row; repeatable.",
    ),
    cloup.option(
        "--ids",
        "ids_file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A file with such an id on each line.",
    ),
    cloup.option(
        "--prompt-contains",
        "prompt_parts",
        multiple=True,
        metavar="TEXT",
        help="Images whose prompt contains this text, ignoring case; repeatable.",
    ),
    cloup.option(
        "--prompt-sha256",
        "prompt_hashes",
        multiple=True,
        metavar="HASH",
        help="Images of the prompt with this SHA-256; repeatable.",
    ),
)
@cloup.option(
    "--from-export",
    "exports",
    multiple=True,
    metavar="FOLDER",
    type=PATH_OR_URI,
    help="Then bring this export of them up to date; repeatable.",
)
@cloup.option(
    "--remove", is_flag=True, help="Remove the images. Without it, they are only counted."
)
@format_option
def forget(
    source: str,
    ids: tuple[str, ...],
    ids_file: Path | None,
    prompt_parts: tuple[str, ...],
    prompt_hashes: tuple[str, ...],
    exports: tuple[str, ...],
    *,
    remove: bool,
) -> None:
    """Count images, or take them down for good.

    Their bytes are removed from all parts, and their copies from reports. Neither retry nor a later
    job with skip_existing makes them again. Their rows stay, with their prompts.
    """
    from imagekiln.steps.maintain.forget import ForgetSelection
    from imagekiln.steps.maintain.forget import forget as forget_images
    from imagekiln.steps.storage.failures import translate_errors

    if ids_file is not None:
        with translate_errors(str(ids_file)):
            lines = ids_file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
        ids += tuple(filter(None, map(str.strip, lines)))
    selection = ForgetSelection(ids, prompt_parts, prompt_hashes)
    result = forget_images(source, selection, exports, remove=remove)
    print_result(result, text.format_forgotten)
