"""The plan of a run, frozen in plan.json: which images must exist, and how they are made.

Every step after planning reads the job's settings here.
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
# Of all objects of a run. Raise it if a released Imagekiln would misread them.
PLAN_SCHEMA_VERSION = 2
MAX_PART_IMAGES = 16_384  # of the largest `part.images`, rounded up to whole batches
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]  # a part of it is in names of objects


@dataclass(frozen=True, slots=True)
class InputFacts:
    """The input that was planned: its files and rows, and one hash of all their bytes."""

    files: Count
    rows: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class RewriteFacts:
    """The texts of a language model that were planned: where they lie under the output.

    `model` identifies the model's files, `sha256` what became of each of the `prompts`.
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
    """The number of images of one size, in pixels, in a batch."""

    width: Side
    height: Side
    images: Annotated[int, Field(ge=1, le=MAX_PART_IMAGES)]


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its images, and the hash of the object that lists them."""

    images: Annotated[int, Field(ge=1, le=MAX_SHARD_IMAGES)]
    sha256: Sha256


def _dump_without_cluster(job: Job, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
    # The cluster that a job runs on changes none of its images.
    values = cast("dict[str, object]", dump(job))
    return {name: value for name, value in values.items() if name != "cluster"}


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run, or of one of its retries.

    `width` and `height` are in pixels; if the job names none, they are the model's.
    `batch_sizes` holds what was tuned for each size, and is empty if the job sets the number of
    images itself or nothing was tuned. Images of `existing_runs` were omitted. `retry` is 0 for the
    run itself, and no plan.json has another. Of a retry, `source_shards` has, for each shard, the
    first and the last shard of the run that its images come from. `revisions` are the branches and
    tags that were resolved to the commits in `job`. `created_at` is the time of planning. Where
    `sample_images` is not 0, the first shard has so many images: a sample of all. `scores`
    identifies the files of scores, by the path of the setting, `passes` those of passes, by name,
    and `entries` those of functions of the user's own. `rewrite` says which texts the prompts are,
    `fused_loras` which LoRAs, as canonical text, are a part of the model's weights, and `expected`
    what planning estimated. `rejected` and `duplicates` are the hashes of the objects that list
    these rows.
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

    @property
    def max_batch_size(self) -> int:
        """The number of images in the run's largest batches."""
        return max_batch_size(self.job, self.batch_sizes)

    @property
    def pass_sizes(self) -> PassSizes:
        """The sizes that the job's passes give."""
        return PassSizes.of(self.job, self.passes, self.model.size_multiple)

    def batch_size(self, width: int, height: int) -> int:
        """The number of images in a batch of this size, in pixels."""
        for size in self.batch_sizes:
            if (size.width, size.height) == (width, height):
                return size.images
        return self.max_batch_size

    def part_count(self, shard: int) -> int:
        """The number of parts of a shard."""
        images = self.shards[shard].images
        return -(-images // self.part_images)


PLAN_TYPE_ADAPTER: TypeAdapter[Plan] = TypeAdapter(Plan)


def max_batch_size(job: Job, batch_sizes: Iterable[BatchSize]) -> int:
    """The images in a job's largest batches: as tuned, as the job sets it, or the default."""
    default = job.batch.images or DEFAULT_BATCH_IMAGES
    return max((size.images for size in batch_sizes), default=default)


def creation_time() -> datetime:
    """The time for a plan that is made now, in whole seconds.

    SOURCE_DATE_EPOCH, seconds since 1970, replaces it: with equal times, two plans of one job give
    equal bytes. Raises BadInput if that is no such number.
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
    """The plan as the bytes of plan.json. The same plan gives the same bytes."""
    return PLAN_TYPE_ADAPTER.dump_json(plan, indent=1) + b"\n"


def load_plan(store: Store) -> Plan:
    """Read the plan of the run in `store`.

    Raises Missing if there is none, or BadInput if it is not readable or of another version.
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
    """The plan in the bytes of a plan.json. Raises BadInput."""
    plan = parse_json(PLAN_TYPE_ADAPTER, content, where, "plan")
    if plan.schema_version != PLAN_SCHEMA_VERSION:
        raise version_error(where, plan.schema_version, PLAN_SCHEMA_VERSION)
    return plan


def parse_json(adapter: TypeAdapter[T], content: bytes, where: str, noun: str) -> T:
    """An object of a run, which should be a `noun`. Raises BadInput."""
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(map(str, first["loc"])) or "the whole"
        raise BadInput(
            f"{where}: is not a readable {noun} ({field_name}: {first['msg']}). Restore it."
        ) from error


def iter_pass_plans(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The passes with a model of their own, by name, each with the plan of a run of that model.

    Batches have the sizes that the plan gives those of the job's own model.
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
