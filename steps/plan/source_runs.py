"""Prompt rows from the images of finished runs.

The rows come from manifests, without image bytes: a cell of the column `image` is the location of
the image's bytes, which are read when the row is. Settings of the source have other names than
prompt columns, so that only those are taken over that `columns` names.
"""

import json
from pathlib import Path, PurePath

import pyarrow as pa

from imagekiln.steps.dataset.dataset import IMAGE_COLUMN, open_dataset
from imagekiln.steps.dataset.runs import find_runs
from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import INPUT_IMAGE_COLUMNS, RESERVED_COLUMNS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.rows import ColumnNames
from imagekiln.steps.plan.columns import OUR_NAMES, is_set
from imagekiln.steps.plan.source_files import SourceFile
from imagekiln.steps.runs.commits import digest_of
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.readback import LOCATION_COLUMNS, read_image_bytes
from imagekiln.steps.runs.run import open_run, split_address
from imagekiln.steps.runs.tables import ID_COLUMN, LOCATION_SCHEMA, write_parquet
from imagekiln.steps.storage import open_store

INPUT_COLUMN = "reference_images"  # the prompt column that reads the images by default
KEPT_SETTINGS = ("negative_prompt", "seed", "width", "height", "steps", "guidance", "sampler")
SOURCE_PREFIX = "source_"  # of the settings of the source's images


def require_finished(uri: str) -> None:
    """Raise BadInput if a run is not finished, or if an output has no such run, TryAgain."""
    run_uri, _ = split_address(uri)
    if open_store(run_uri).exists(PLAN_KEY) and not open_run(run_uri).is_finished:
        raise BadInput(
            f"{uri}: is not finished, and prompts.run takes the images of finished runs. Run or "
            "retry it to its end first."
        )
    find_runs(uri)


def write_run_table(uri: str, folder: Path) -> SourceFile:
    """Write the images that are ok of a run, or the newest of an output, as rows in `folder`.

    Raises BadInput if the run is not finished, Missing, TryAgain.
    """
    require_finished(uri)
    dataset = open_dataset(uri, newest_by=ID_COLUMN)
    schema = _add_names(dataset.manifest_columns.empty_table(), "").schema
    path = folder / "source-run.parquet"
    tables = (_add_names(rows, run.uri) for run, rows in dataset.iter_rows())
    write_parquet(path, schema, (batch for table in tables for batch in table.to_batches()))
    names = {PurePath(run.uri).name: run.manifests for run in dataset.runs}
    digest = digest_of(json.dumps([*names.items()]).encode())  # names of manifests have hashes
    return SourceFile(uri, path, digest, runs=tuple(names))


def read_run_image(name: str, _: str, limit: int) -> bytes:
    """Read an image of a run by the location in its cell. Raises BadInput, Missing, TryAgain."""
    location = json.loads(name)
    return read_image_bytes(open_store(location["run"]), location)[:limit]


def run_columns(job: Job) -> ColumnNames:
    """Return the job's names of columns, with a prompt column that reads the source's images.

    Images that are not drawn keep the settings with which they were. Raises BadInput.
    """
    names = dict(job.columns)
    for ours, theirs in names.items():
        if theirs is None or not is_set(ours, theirs):
            continue
        if ours in INPUT_IMAGE_COLUMNS and theirs != IMAGE_COLUMN:
            raise BadInput(
                f"columns.{ours}: over prompts.run, only the column image has images. Set it to "
                "image, or remove it."
            )
        if ours in KEPT_SETTINGS and not job.draws:
            raise BadInput(
                f"columns.{ours}: without a model, each image keeps this setting. Remove it."
            )
    taken = {}
    if not job.draws:
        taken = {ours: SOURCE_PREFIX + ours for ours in KEPT_SETTINGS}
    if IMAGE_COLUMN not in names.values() and (names[INPUT_COLUMN] is not None or not job.draws):
        taken[INPUT_COLUMN] = IMAGE_COLUMN
    return job.columns.model_copy(update=taken)


def wanted_columns(columns: ColumnNames) -> list[str]:
    """Return the prompt columns to take from a run: its images, and those that the job names."""
    return [
        ours
        for ours in OUR_NAMES
        if ours in ("prompt", "id") or is_set(ours, getattr(columns, ours))
    ]


def _add_names(rows: pa.Table, uri: str) -> pa.Table:
    """Rename the columns of a manifest to those of prompt rows, and add the cells of images."""
    locations = rows.select([*LOCATION_COLUMNS]).to_pylist()
    cells = [json.dumps({"run": uri, **location}) for location in locations]
    columns = {
        "id": rows[ID_COLUMN],
        "prompt": rows["prompt"],
        IMAGE_COLUMN: pa.array(cells, pa.string()),
    }
    columns |= {
        SOURCE_PREFIX + name if name in RESERVED_COLUMNS else name: rows[name]
        for name in sorted(rows.column_names, key=RESERVED_COLUMNS.__contains__)
        if name not in LOCATION_SCHEMA.names
    }
    return pa.table(columns)
