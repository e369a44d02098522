"""Images of finished runs: exported, published, taken down and read.

`imagekiln` itself gives these functions.
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
    progress: bool | None = None,
) -> "results.ExportResult":
    """Copy the images that are ok of a run, or of a job's output, into fewer, larger files.

    `format` is parquet, arrow, webdataset, or files for a folder of pictures. `file_size` is the
    most that a file has, in bytes or as "1GB", 500MB if None; `files` takes none. `partition_by` is
    a column whose values become folders, and `columns` are those to export.
    Each image comes once, and each value of `newest_by`, such as id, from the newest run that has
    an image for it.
    Called again, it resumes, adds what is new, and drops what was forgotten or has a newer image.
    Raises BadInput if an image is damaged, or the destination holds something else; Missing
    if there is no run; Incomplete if one was never aggregated.
    """
    from imagekiln.steps.export.settings import read_settings
    from imagekiln.steps.export.step import export as export_images

    settings = read_settings(format, file_size, partition_by, columns, newest_by)
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

    The token is that in HF_TOKEN. A dataset that does not exist is made, private unless `public`.
    Called again, it resumes. Raises BadInput if the hub or the export is not as it has to be,
    TryAgain if the hub is not reached.
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
    """Count images of a run or of a job's output; with `remove`, take them down for good.

    `ids` are those of images or of rows, `prompt_contains` texts in prompts, in whatever case, and
    `prompt_sha256` hashes of whole prompts. Neither `retry` nor a later job with `skip_existing`
    makes them again; their rows stay, with their prompts. `exports` of them are brought up to date.

    Raises BadInput if a run or an export is not finished, Incomplete if an interrupted
    command was replacing a run's objects, Missing if there is none.
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
    filter: "pc.Expression | None" = None,  # noqa: A002  # as pyarrow.dataset calls it
    newest_by: str | None = None,
) -> "results.Dataset":
    """Open the images that are ok of a run, or of all successful runs under a job's output.

    Each image of a run comes once, also where `retry` generated it again; one that two runs hold
    comes twice, unless `newest_by` is image_id. With another column, such as id, each of its values
    also comes from the newest run alone that has an image for it. Either reads all manifests first.
    `columns` are names of columns of
    the manifest and `image`; without `image`, no image is read. `filter` is an expression such as
    `pyarrow.compute.field("width") >= 1024`, over all columns of the manifest.

    Raises Missing if there is no run, Incomplete if one was never aggregated, BadInput if
    a column is unknown.

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

    They are those that the highest commit of each run names: earlier ones lie beside them. Raises
    as `dataset` does.

    ```python
    names = imagekiln.manifests("s3://datasets/postcards")
    duckdb.sql(f"select status, count(*) from read_parquet({names}) group by status")
    ```
    """
    from imagekiln.steps.dataset.runs import list_manifests

    return list_manifests(fspath(uri))
