"""Plan of a run, frozen in plan.json: the images to make, and all settings for them.

Every step after planning reads the job's settings from the plan.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import not_
from typing import Annotated, TypeVar, cast

from pydantic import (
    AwareDatetime,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WrapSerializer,
)

from imagekiln.steps.errors import BadInput, Missing, version_error
from imagekiln.steps.job.columns import MAX_SIDE
from imagekiln.steps.job.execution import DEFAULT_BATCH_IMAGES, MAX_SHARD_IMAGES
from imagekiln.steps.job.fields import RunId
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.loras import LoraFacts
from imagekiln.steps.models.passes import PassFacts, PassSizes, iter_pass_jobs
from imagekiln.steps.models.resolve import NamedRevision
from imagekiln.steps.runs.keys import PLAN_KEY, SHA256_PATTERN
from imagekiln.steps.runs.stats import Count, Expectation
from imagekiln.steps.storage.store import Store

T = TypeVar("T")
# Version of all objects of a run. Raise it if a released Imagekiln would misread them.
PLAN_SCHEMA_VERSION = 2
MAX_PART_IMAGES = 16_384  # of the largest `part.images`, rounded up to whole batches
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]  # its first digits are in object names


@dataclass(frozen=True, slots=True)
class InputFacts:
    """The planned input: its files and rows, and one hash of all their bytes.

    `runs` are the runs whose images are the rows. `sha256` is then a hash of their manifests.
    """

    files: Count
    rows: Count
    sha256: str
    runs: Annotated[tuple[RunId, ...], Field(exclude_if=not_)] = ()


@dataclass(frozen=True, slots=True)
class RewriteFacts:
    """The planned prompt rewrites: where they are stored in the output.

    `model` identifies the files of the language model, `sha256` the rewrites of all `prompts`.
    """

    folder: str
    model: str
    prompts: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """Counts of planned, rejected and omitted rows.

    Each image of an accepted row is planned once, or counted as a duplicate or as existing.
    """

    rejected_rows: Count
    images: Count
    duplicate_images: Count
    truncated_prompts: Count
    existing_images: Count = 0


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Number of images per batch for one image size, in pixels."""

    width: Side
    height: Side
    images: Annotated[int, Field(ge=1, le=MAX_PART_IMAGES)]


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its number of images, and the hash of the object that lists them."""

    images: Annotated[int, Field(ge=1, le=MAX_SHARD_IMAGES)]
    sha256: Sha256


def _dump_without_cluster(job: Job, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
    # The cluster settings of a job change none of its images.
    values = cast("dict[str, object]", dump(job))
    return {name: value for name, value in values.items() if name != "cluster"}


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run, or of one of its retries.

    `width` and `height` are in pixels, the model's if the job names none. `batch_sizes` holds the
    tuned batch size for each image size. It is empty if the job sets the batch size, or if nothing
    was tuned. Images of `existing_runs` were omitted. `retry` is 0 for the run itself, and in every
    plan.json. For a retry, `source_shards` has, for each of its shards, the first and the last
    shard of the run whose images it retries. `revisions` are the branches and tags that were
    resolved to the commits in `job`. `created_at` is the time of planning. If `sample_images` is
    not 0, the first shard is a sample of this many images. `scores` identifies the files of scores
    by the path of the setting, `passes` the files of passes by name, and `entries` the files of
    user functions. `rewrite` identifies the rewritten prompts. `fused_loras` lists, in canonical
    form, the LoRAs that are fused into the model's weights. `expected` is the estimate made at
    planning. `rejected` and `duplicates` are the hashes of the objects that list these rows. With
    `has_references`, the pipeline reads reference images of any size.
    """

    schema_version: int
    run_id: RunId
    created_at: AwareDatetime
    job: Annotated[Job, WrapSerializer(_dump_without_cluster)]
    width: Side
    height: Side
    model: ModelFacts
    input: InputFacts
    counts: PlanCounts
    part_images: Annotated[int, Field(ge=1, le=MAX_PART_IMAGES)]
    shards: Annotated[tuple[Shard, ...], FailFast()]
    rejected: Sha256 = ""
    duplicates: Sha256 = ""
    existing_runs: Annotated[tuple[RunId, ...], FailFast()] = ()
    retry: Annotated[Count, Field(exclude=True, le=0)] = 0
    source_shards: Annotated[
        tuple[tuple[Count, Count], ...], Field(exclude=True, max_length=0)
    ] = ()
    batch_sizes: Annotated[tuple[BatchSize, ...], FailFast()] = ()
    adapters: dict[str, str] = field(default_factory=dict)
    loras: dict[str, LoraFacts] = field(default_factory=dict)
    fused_loras: Annotated[str | None, Field(exclude_if=not_)] = None
    revisions: Annotated[tuple[NamedRevision, ...], Field(exclude_if=not_)] = ()
    sample_images: Annotated[Count, Field(exclude_if=not_)] = 0
    scores: Annotated[dict[str, str], Field(exclude_if=not_)] = field(default_factory=dict)
    entries: Annotated[dict[str, str], Field(exclude_if=not_)] = field(default_factory=dict)
    rewrite: Annotated[RewriteFacts | None, Field(exclude_if=not_)] = None
    passes: Annotated[dict[str, PassFacts], Field(exclude_if=not_)] = field(default_factory=dict)
    expected: Annotated[Expectation | None, Field(exclude_if=not_)] = None
    has_references: Annotated[bool, Field(exclude_if=not_)] = False

    @property
    def max_batch_size(self) -> int:
        """Number of images in the run's largest batches."""
        return max_batch_size(self.job, self.batch_sizes)

    @property
    def pass_sizes(self) -> PassSizes:
        """Image sizes before and after the job's passes."""
        return PassSizes.of(self.job, self.passes, self.model.size_multiple)

    def batch_size(self, width: int, height: int) -> int:
        """Return the number of images in a batch of this size, in pixels."""
        for size in self.batch_sizes:
            if (size.width, size.height) == (width, height):
                return size.images
        return self.max_batch_size

    def part_count(self, shard: int) -> int:
        """Return the number of parts of a shard."""
        images = self.shards[shard].images
        return -(-images // self.part_images)


PLAN_TYPE_ADAPTER: TypeAdapter[Plan] = TypeAdapter(Plan)


def max_batch_size(job: Job, batch_sizes: Iterable[BatchSize]) -> int:
    """Return the size of a job's largest batches: as tuned, as set by the job, or the default."""
    default = job.batch.images or DEFAULT_BATCH_IMAGES
    return max((size.images for size in batch_sizes), default=default)


def creation_time() -> datetime:
    """Return the creation time for a new plan, in whole seconds.

    SOURCE_DATE_EPOCH, in seconds since 1970, replaces the current time, so that planning a job
    twice gives equal bytes. Raises BadInput if it is not a valid number.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return datetime.now(UTC).replace(microsecond=0)
    try:
        return datetime.fromtimestamp(int(epoch), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise BadInput(
            f"SOURCE_DATE_EPOCH is {epoch!r}. Unset it, or set it to seconds since 1970."
        ) from error


def plan_to_json(plan: Plan) -> bytes:
    """Serialize the plan as plan.json. The same plan gives the same bytes."""
    return PLAN_TYPE_ADAPTER.dump_json(plan, indent=1) + b"\n"


def load_plan(store: Store) -> Plan:
    """Read the plan of the run in `store`.

    Raises Missing if there is none, or BadInput if it is unreadable or has another version.
    """
    try:
        content = store.read(PLAN_KEY)
    except Missing as error:
        raise Missing(
            f"{store.uri}: holds no plan. Name the folder of a run, such as OUTPUT/RUN_ID: "
            "`imagekiln runs OUTPUT` lists them."
        ) from error
    return parse_plan(content, store.uri_of(PLAN_KEY))


def parse_plan(content: bytes, where: str) -> Plan:
    """Parse the bytes of a plan.json. Raises BadInput."""
    plan = parse_json(PLAN_TYPE_ADAPTER, content, where, "plan")
    if plan.schema_version != PLAN_SCHEMA_VERSION:
        raise version_error(where, plan.schema_version, PLAN_SCHEMA_VERSION)
    return plan


def parse_json(adapter: TypeAdapter[T], content: bytes, where: str, noun: str) -> T:
    """Parse an object of a run, which is expected to be a `noun`. Raises BadInput."""
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(map(str, first["loc"])) or "the whole"
        raise BadInput(
            f"{where}: is not a readable {noun} ({field_name}: {first['msg']}). Restore it."
        ) from error


def iter_pass_plans(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield each pass that has its own model, by name, with the plan of a run of that model.

    Batch sizes are taken from the plan.
    """
    sizes = plan.pass_sizes.sizes_by_pass((plan.width, plan.height))
    size_of = dict(zip(plan.job.passes, sizes, strict=True))
    bare = replace(plan, adapters={}, loras={}, fused_loras=None, scores={}, passes={})
    for name, job in iter_pass_jobs(plan.job):
        facts = plan.passes[name].model
        if facts is None:
            continue
        width, height = size_of[name]
        yield (
            name,
            replace(
                bare,
                job=job,
                model=facts,
                width=width,
                height=height,
            ),
        )
