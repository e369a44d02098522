"""The runs that a dataset reads: one run, or all successful runs under an output."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from imagekiln.steps.dataset.image_ranges import LOCATION_COLUMNS
from imagekiln.steps.errors import BadInput, Incomplete, Missing, TryAgain, cut_name
from imagekiln.steps.job.output import file_suffix
from imagekiln.steps.runs.added_columns import added_fields
from imagekiln.steps.runs.finished_runs import find_finished_runs, refuse_unfinished
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY, SUSPENDED_KEY, manifest_key
from imagekiln.steps.runs.manifest import read_manifest
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.runs.shard import read_row_schema
from imagekiln.steps.runs.tables import (
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    ORIGIN_SCHEMA,
    OUTCOME_SCHEMA,
)
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import local_path
from imagekiln.steps.storage.store import Store
from imagekiln.steps.storage.uri import is_remote_uri

READERS = 16


@dataclass(frozen=True, slots=True)
class RunSource:
    """One run: the columns of its manifest, the images of each shard, and those of a part.

    `row_columns` are the names of those that its rows have since they were planned, `suffix` is
    that of its image files, and `planned_at` when its prompts were read.
    """

    uri: str
    planned_at: datetime
    columns: pa.Schema
    shard_images: tuple[int, ...]
    part_images: int
    suffix: str
    row_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ManifestSlice:
    """The rows of one part in a manifest: what is read at once, and by one worker."""

    run: int
    shard: int
    start: int
    rows: int


def find_runs(uri: str) -> tuple[RunSource, ...]:
    """The run at `uri`, or the successful runs under it, in the order in which they were planned.

    A night that failed and is resumed later is not newer for that: its prompts are those of then.
    Raises Missing where there are none, Incomplete where one is suspended, BadInput where one
    cannot be read, TryAgain.
    """
    if not is_remote_uri(uri):
        _refuse_file(uri)
    run_uri, _ = resolve_run(uri)
    store = open_store(run_uri)
    if store.exists(PLAN_KEY):
        return (open_source(run_uri),)
    entries = find_finished_runs(run_uri)
    if not entries:
        refuse_unfinished(run_uri)
        raise Missing(
            f"{uri}: is neither a run nor a folder with finished runs. "
            "Check its name, or run the job first."
        )
    uris = [f"{run_uri.rstrip('/')}/{entry.run_id}" for entry in entries]
    with ThreadPoolExecutor(READERS) as pool:
        sources = pool.map(open_source, uris)
        return tuple(sorted(sources, key=lambda source: source.planned_at))


def require_not_suspended(store: Store) -> None:
    """Raise Incomplete where the manifest of a run may name images that are taken down just now."""
    if store.exists(SUSPENDED_KEY) and not store.exists(SUCCESS_KEY):
        raise Incomplete(
            f"{store.uri}: its objects are being replaced. If the command that does so was "
            f"interrupted, repeat it, or type `{format_command('aggregate', store.uri)}`."
        )


def require_unchanged(run: RunSource, shard: int, manifest: pa.Table) -> None:
    """Raise TryAgain where a shard is not what it was when its manifest was read.

    What was taken for damage is none then. Raises Incomplete while the run is changed.
    """
    require_not_suspended(open_store(run.uri))
    now = read_run_manifest(run, shard)
    columns = list(LOCATION_COLUMNS)
    if not now.select(columns).equals(manifest.select(columns)):
        raise TryAgain(
            f"{run.uri}: was changed while it was read, as when images of it were taken down. "
            "Run the command again, or read the dataset from its beginning again."
        )


def _refuse_file(uri: str) -> None:
    with translate_errors(uri):
        if local_path(uri).is_file():
            raise BadInput(f"{uri}: is a file. Name the folder of a run, or the output of a job.")


def open_source(uri: str) -> RunSource:
    """What the plan of the run at `uri` says.

    Raises Incomplete where the run was not aggregated or is suspended, Missing, BadInput, TryAgain.
    """
    store = open_store(uri)
    return describe_source(store, load_plan(store))


def describe_source(store: Store, plan: Plan) -> RunSource:
    """What a plan says of the run in `store`. Raises as `open_source` does."""
    require_not_suspended(store)
    if plan.shards and not store.exists(manifest_key(len(plan.shards) - 1)):
        raise no_manifest_error(store)
    row_schema = read_row_schema(store, plan)
    fields = (
        *row_schema,
        *OUTCOME_SCHEMA,
        *added_fields(plan.job),
        *LOCATION_SCHEMA,
        *NEAR_DUPLICATE_SCHEMA,
    )
    return RunSource(
        uri=store.uri,
        planned_at=plan.created_at,
        columns=pa.schema(fields),
        shard_images=tuple(shard.images for shard in plan.shards),
        part_images=plan.part_images,
        suffix=file_suffix(plan.job.encoding),
        row_columns=tuple(name for name in row_schema.names if name not in ORIGIN_SCHEMA.names),
    )


def manifest_slices(runs: tuple[RunSource, ...]) -> Iterator[ManifestSlice]:
    """Every slice of every manifest, in order."""
    for run_number, run in enumerate(runs):
        for shard, images in enumerate(run.shard_images):
            for start in range(0, images, run.part_images):
                rows = min(run.part_images, images - start)
                yield ManifestSlice(run_number, shard, start, rows)


def read_run_manifest(run: RunSource, shard: int) -> pa.Table:
    """The manifest of one shard. Raises Incomplete where the run was not aggregated, BadInput."""
    store = open_store(run.uri)
    try:
        manifest = read_manifest(store, shard, run.shard_images[shard])
    except Missing as error:
        raise no_manifest_error(store) from error
    for name in run.row_columns:
        if name not in manifest.column_names:
            raise BadInput(
                f"{store.uri}: its first shard has a column {cut_name(name)!r}, and its manifest "
                "has none. Verify the run, which says what is damaged."
            )
    return manifest


def no_manifest_error(store: Store) -> Incomplete:
    """The error for a run that was never aggregated."""
    return Incomplete(
        f"{store.uri}: has no complete manifest, so its images cannot be read yet. "
        "Run its job to the end first."
    )


def unite_columns(runs: tuple[RunSource, ...], names: Sequence[str] | None = None) -> pa.Schema:
    """The columns of all runs, in the order in which they first come.

    Raises BadInput where two runs have a column of the same name and different types. With `names`,
    only these have to agree, and other columns that do not are omitted.
    """
    fields: dict[str, pa.Field] = {}
    first_run: dict[str, RunSource] = {}
    conflicts: set[str] = set()
    for run in runs:
        for field in run.columns:
            earlier = fields.setdefault(field.name, field)
            first = first_run.setdefault(field.name, run)
            if earlier.type == field.type:
                continue
            if names is None or field.name in names:
                raise BadInput(
                    f"column {field.name!r} is {earlier.type} in {first.uri} and {field.type} in "
                    f"{run.uri}. Name the columns that you need, without this one, or open these "
                    "runs one by one."
                )
            conflicts.add(field.name)
    return pa.schema([field for name, field in fields.items() if name not in conflicts])
