"""The runs that an export is of, as they are now."""

from collections.abc import Sequence

import pyarrow as pa

from imagekiln.steps.dataset.dataset import Dataset, open_dataset
from imagekiln.steps.dataset.runs import RunSource, find_runs
from imagekiln.steps.errors import BadInput
from imagekiln.steps.export.commits import ExportCommit, ExportedRun, read_file_rows
from imagekiln.steps.export.rows import exported_columns, require_partition_column
from imagekiln.steps.runs.commits import digest_of
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.registry import read_entries
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store


def open_source(uri: str, store: Store, commit: ExportCommit) -> Store:
    """The source of an export. Raises BadInput if its images come from another one."""
    source = open_store(uri)
    if not commit.runs:
        return source
    is_run = source.exists(PLAN_KEY)
    # The registry names runs whose folders are gone, too.
    names = {load_plan(source).run_id} if is_run else {run.run_id for run in read_entries(uri)}
    if is_run != commit.is_run or names.isdisjoint(run.run_id for run in commit.runs):
        kind = "run" if commit.is_run else "output with run"
        raise BadInput(
            f"{source.uri}: is not the {kind} {commit.runs[0].run_id} that was exported to "
            f"{store.uri} before. Name that, or another destination."
        )
    return source


def is_unchanged(commit: ExportCommit, source: Store) -> bool:
    """True if the runs of a source are as a commit has them. Raises as `find_runs`."""
    return commit.runs == describe_runs(commit, source, find_runs(source.uri))


def describe_runs(
    commit: ExportCommit, source: Store, runs: Sequence[RunSource]
) -> tuple[ExportedRun, ...]:
    """The runs of a source as commits of its export have them."""
    described = list[ExportedRun]()
    for run in runs:
        run_id = load_plan(source).run_id if commit.is_run else run.uri.rpartition("/")[2]
        names = "\n".join(run.manifests)
        state = digest_of(names.encode())
        described.append(ExportedRun(run_id, run.suffix, state))
    return tuple(described)


def open_images(source: Store, store: Store, commit: ExportCommit) -> tuple[Dataset, pa.Schema]:
    """The images of a source, and the columns that the export has had from its first file on.

    All of its files have the same columns, whatever later runs have. Raises BadInput if
    they have one with another type.
    """
    uri = source.uri
    settings = commit.settings
    known = open_dataset(uri, settings.columns).manifest_columns.names
    names = exported_columns(known, settings)
    schema = read_file_rows(store, commit.files[0]).schema if commit.files else None
    if schema is not None:
        names = [name for name in schema.names if name in known]
    dataset = open_dataset(uri, names, newest_by=settings.newest_by)
    if schema is None:
        schema = dataset.schema
        if settings.partition_by is not None:
            require_partition_column(dataset, settings.partition_by)
    for field in dataset.schema:
        first_type = schema.field(field.name).type
        if field.type != first_type:
            raise BadInput(
                f"column {field.name!r} is {first_type} in {store.uri} and {field.type} in {uri}. "
                "Export to another destination, or without this column."
            )
    return dataset, schema
