"""Images of finished runs: export, publish, take down and read.

`imagekiln` re-exports these functions.
"""

from collections.abc import Sequence
from os import fspath
from typing import TYPE_CHECKING

from imagekiln.local import PathOrUri, show_progress
from imagekiln.steps.errors import explain_failures

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from imagekiln import results


@explain_failures
def export(
    source: PathOrUri,
    destination: PathOrUri,
    *,
    format: str = "parquet",  # noqa: A002  # as in jobs
    file_size: str | int | None = None,
    partition_by: str | None = None,
    columns: Sequence[str] | None = None,
    newest_by: str = "image_id",
    triplets: bool = False,
    progress: bool | None = None,
) -> "results.ExportResult":
    """Copy the images that are ok of a run, or of a job's output, into fewer, larger files.

    `format` is parquet, arrow, webdataset, or files for a folder of pictures. `file_size` is the
    maximum size of a file, in bytes or as "1GB", 500MB by default, and cannot be set for `files`.
    `partition_by` is a column whose values become folders, and `columns` are the columns to export.
    Each image is exported once. For each value of `newest_by`, such as id, only images of the
    newest run that has one are exported. With `triplets`, each row has its input images too, in
    the columns input_image, edit_prompt and edited_image. Called again, it resumes, adds new
    images, and drops images that were forgotten or replaced by a newer one. Raises BadInput if an
    image is damaged, or the destination has other content; Missing if there is no run; Incomplete
    if one was never aggregated.
    """
    from imagekiln.steps.export.settings import read_settings
    from imagekiln.steps.export.step import export as export_images

    settings = read_settings(format, file_size, partition_by, columns, newest_by, triplets=triplets)
    with show_progress(progress) as reporter:
        return export_images(fspath(source), fspath(destination), settings, reporter)


@explain_failures
def push(
    export: PathOrUri,
    repository: str,
    *,
    version: str | None = None,
    public: bool = False,
    progress: bool | None = None,
) -> "results.PushResult":
    """Upload a complete export to `hf://datasets/USER/NAME`, and tag it as `version`.

    The token is read from HF_TOKEN. Creates the dataset if it does not exist, private unless
    `public`. Called again, it resumes. Raises BadInput if the export is not complete or the hub
    refuses it, TryAgain if the hub is unreachable.
    """
    from imagekiln.steps.export.push import push as push_export

    with show_progress(progress) as reporter:
        return push_export(fspath(export), repository, version, public=public, progress=reporter)


@explain_failures
def forget(
    source: PathOrUri,
    *,
    ids: Sequence[str] = (),
    prompt_contains: Sequence[str] = (),
    prompt_sha256: Sequence[str] = (),
    exports: Sequence[PathOrUri] = (),
    remove: bool = False,
) -> "results.ForgetResult":
    """Count images of a run or of a job's output; with `remove`, take them down permanently.

    `ids` are ids of images or of rows, `prompt_contains` strings that prompts contain, ignoring
    case, and `prompt_sha256` hashes of whole prompts. Neither `retry` nor a later job with
    `skip_existing` makes the images again. Their rows stay, with their prompts. `exports` are
    updated.

    Raises BadInput if a run or an export is not finished, Incomplete if an interrupted command was
    replacing a run's objects, Missing if there is none.
    """
    from imagekiln.steps.maintain.forget import ForgetSelection
    from imagekiln.steps.maintain.forget import forget as forget_images

    selection = ForgetSelection(tuple(ids), tuple(prompt_contains), tuple(prompt_sha256))
    names = [fspath(name) for name in exports]
    return forget_images(fspath(source), selection, names, remove=remove)


@explain_failures
def dataset(
    uri: PathOrUri,
    columns: Sequence[str] | None = None,
    filter: "pc.Expression | None" = None,  # noqa: A002  # named as in pyarrow.dataset
    newest_by: str | None = None,
) -> "results.Dataset":
    """Open the images that are ok of a run, or of all successful runs in a job's output.

    Each image of a run is returned once, even if `retry` generated it again. An image in two runs
    is returned twice, unless `newest_by` is image_id. With another column, such as id, each of its
    values is also read only from the newest run that has an image for it. Either reads all
    manifests first. `columns` are names of columns of the manifest, and `image`. Without `image`,
    no image is read. `filter` is an expression over all columns of the manifest, such as
    `pyarrow.compute.field("width") >= 1024`.

    Raises Missing if there is no run, Incomplete if one was never aggregated, BadInput if a column
    is unknown.

    ```python
    images = imagekiln.dataset("s3://datasets/postcards", columns=["image", "prompt"])
    for batch in images.to_batches():  # pyarrow.RecordBatch
        print(batch["prompt"])
    images.to_hf(streaming=True)  # datasets.IterableDataset
    images.to_torch()  # for torch.utils.data.DataLoader
    ```
    """
    from imagekiln.steps.dataset.dataset import open_dataset

    return open_dataset(fspath(uri), columns, filter, newest_by)


@explain_failures
def manifests(uri: PathOrUri) -> list[str]:
    """List the Parquet files with a row for each planned image, of a run or of an output's runs.

    Only the files that the highest commit of each run names are listed, not earlier versions in
    the same folder. Raises as `dataset` does.

    ```python
    names = imagekiln.manifests("s3://datasets/postcards")
    duckdb.sql(f"select status, count(*) from read_parquet({names}) group by status")
    ```
    """
    from imagekiln.steps.dataset.runs import list_manifests

    return list_manifests(fspath(uri))
