"""The runs that a dataset reads: one run, or all successful runs in an output."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job.output import file_suffix
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.manifest import find_manifest
from imagekiln.steps.runs.registry import find_finished_runs
from imagekiln.steps.runs.run import Run, open_run, split_address
from imagekiln.steps.runs.shard import read_row_schema
from imagekiln.steps.runs.tables import (
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    OUTCOME_SCHEMA,
    added_fields,
)
from imagekiln.steps.storage import open_store

READERS = 16


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run to read: the columns of its manifest, and the images per shard and per part.

    `suffix` is the suffix of its image files, and `planned_at` the time when its prompts were read.
    `commit` is the number of the commit that names the `manifests`.
    """

    uri: str
    commit: int
    manifests: tuple[str, ...]
    planned_at: datetime
    columns: pa.Schema
    shard_images: tuple[int, ...]
    part_images: int
    suffix: str


@dataclass(frozen=True, slots=True)
class ManifestSlice:
    """The rows of one part in a manifest: the unit of reading, by one worker."""

    run: int
    shard: int
    start: int
    rows: int


def find_runs(uri: str) -> tuple[RunSource, ...]:
    """Find the run at `uri`, or the successful runs under it, in the order of planning.

    A failed run that is resumed later keeps its place, since its prompts are as planned. Raises
    Missing if there are none, BadInput if one cannot be read, TryAgain.
    """
    run_uri, _ = split_address(uri)
    store = open_store(run_uri)
    if store.exists(PLAN_KEY):
        return (open_source(run_uri),)
    entries = find_finished_runs(run_uri)
    if not entries:
        raise Missing(
            f"{uri}: is neither a run nor a folder with finished runs. "
            "Check its name, or run the job to the end."
        )
    uris = [f"{run_uri.rstrip('/')}/{entry.run_id}" for entry in entries]
    with ThreadPoolExecutor(READERS) as pool:
        sources = pool.map(open_source, uris)
        return tuple(sorted(sources, key=lambda source: source.planned_at))


def list_manifests(uri: str) -> list[str]:
    """List the manifest URIs of the run at `uri`, or of the successful runs under it.

    Raises as `find_runs` does.
    """
    return [f"{run.uri}/{name}" for run in find_runs(uri) for name in run.manifests]


def require_unchanged(run: RunSource, error: BadInput) -> None:
    """Raise TryAgain if a run has a newer commit, so that the error is not damage.

    In this case, images were taken down, and the parts that held them are buried.
    """
    if read_head(open_store(run.uri)).number > run.commit:
        raise TryAgain(
            f"{run.uri}: was changed while it was read, as when images of it were taken down. "
            "Run the command again, or read the dataset from its beginning again."
        ) from error


def open_source(uri: str) -> RunSource:
    """Read plan and commit of the run at `uri`.

    Raises Incomplete if the run was not aggregated, Missing, BadInput, TryAgain.
    """
    return describe_source(open_run(uri))


def describe_source(run: Run) -> RunSource:
    """Describe a run by its plan and commit. Raises Incomplete, BadInput."""
    store = run.store
    plan = run.plan
    commit = run.head.commit
    if plan.shards:
        find_manifest(store, commit, len(plan.shards) - 1)
    fields = (
        *read_row_schema(store, plan),
        *OUTCOME_SCHEMA,
        *added_fields(plan.job),
        *LOCATION_SCHEMA,
        *NEAR_DUPLICATE_SCHEMA,
    )
    return RunSource(
        uri=store.uri,
        commit=run.head.number,
        manifests=commit.manifests,
        planned_at=plan.created_at,
        columns=pa.schema(fields),
        shard_images=tuple(shard.images for shard in plan.shards),
        part_images=plan.part_images,
        suffix=file_suffix(plan.job.encoding),
    )


def list_shards(runs: Sequence[RunSource]) -> list[tuple[int, int]]:
    """List the shards as pairs of run and shard number, in order."""
    return [
        (number, shard) for number, run in enumerate(runs) for shard in range(len(run.shard_images))
    ]


def manifest_slices(runs: Sequence[RunSource]) -> Iterator[ManifestSlice]:
    """Yield every slice of every manifest, in order."""
    for number, shard in list_shards(runs):
        run = runs[number]
        images = run.shard_images[shard]
        for start in range(0, images, run.part_images):
            rows = min(run.part_images, images - start)
            yield ManifestSlice(number, shard, start, rows)


def unite_columns(runs: tuple[RunSource, ...], names: Sequence[str] | None = None) -> pa.Schema:
    """Merge the columns of all runs, in the order in which they first appear.

    Raises BadInput if two runs have a column of the same name and different types. With `names`,
    only these columns have to agree, and others that do not are omitted.
    """
    found: dict[str, dict[pa.DataType, tuple[pa.Field, str]]] = {}
    for run in runs:
        for field in run.columns:
            by_type = found.setdefault(field.name, {})
            by_type.setdefault(field.type, (field, run.uri))
    fields = []
    for name, by_type in found.items():
        (first, first_uri), *others = by_type.values()
        if not others:
            fields.append(first)
        elif names is None or name in names:
            other, uri = others[0]
            raise BadInput(
                f"column {name!r} is {first.type} in {first_uri} and {other.type} in {uri}. Name "
                "the columns that you need, without this one, or open these runs one by one."
            )
    return pa.schema(fields)
