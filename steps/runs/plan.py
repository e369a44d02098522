"""The frozen plan of a run: what must exist. Everything after planning reads its settings here."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, cast

from pydantic import SerializerFunctionWrapHandler, TypeAdapter, ValidationError, WrapSerializer

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import DEFAULT_BATCH_IMAGES, Job
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.lora_files import LoraFacts
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.storage.store import Store

PLAN_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What was read: how many files and rows, and one hash of all their bytes."""

    files: int
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """What became of the rows. Every accepted row's images are planned once, or counted as duplicates or existing."""

    rejected_rows: int
    images: int
    duplicate_images: int
    truncated_prompts: int
    existing_images: int = 0


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How many images of one size, in pixels, a batch has."""

    width: int
    height: int
    images: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its images, and the hash of the object that lists them."""

    images: int
    sha256: str


def _dump_without_cluster(job: Job, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
    # Where a job runs decides nothing of what it makes.
    values = cast("dict[str, object]", dump(job))
    return {key: value for key, value in values.items() if key != "cluster"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned run, or a round of it. Sizes are in pixels; where the job named none, they are the model's.

    `batches` has what was tuned for each size; there are none where the job says the number, or nobody knows.
    `looked_at` are the runs whose images were left out. `round` is 0 for the run itself. In a round, `covers` has for
    each shard the first and the last shard of the run that its images come from.
    """

    schema_version: int
    run_id: str
    job: Annotated[Job, WrapSerializer(_dump_without_cluster)]
    width: int
    height: int
    model: ModelFacts
    input: InputFacts
    counts: PlanCounts
    part_images: int
    shards: tuple[Shard, ...]
    existing_runs: tuple[str, ...] = ()
    round: int = 0
    source_shards: tuple[tuple[int, int], ...] = ()
    batch_sizes: tuple[BatchSize, ...] = ()
    adapters: dict[str, str] = field(default_factory=dict)
    loras: dict[str, LoraFacts] = field(default_factory=dict)

    @property
    def max_batch_size(self) -> int:
        """The images in the run's largest batches."""
        return max_batch_size(self.job, self.batch_sizes)

    def batch_size(self, width: int, height: int) -> int:
        """The images in a batch of this size, in pixels."""
        sizes = (
            each.images for each in self.batch_sizes if (each.width, each.height) == (width, height)
        )
        return next(sizes, self.max_batch_size)

    def part_count(self, shard: int) -> int:
        """How many parts a shard has."""
        return -(-self.shards[shard].images // self.part_images)


def max_batch_size(job: Job, batches: Iterable[BatchSize]) -> int:
    """The images in the largest batches of a job: tuned, or the job's own number, or a plain one."""
    return max((each.images for each in batches), default=job.batch.images or DEFAULT_BATCH_IMAGES)


@dataclass(frozen=True, slots=True)
class PlanVersion:
    """The part of a plan.json that every version has."""

    schema_version: int


PLAN_TYPE_ADAPTER: TypeAdapter[Plan] = TypeAdapter(Plan)
PLAN_VERSION_TYPE_ADAPTER: TypeAdapter[PlanVersion] = TypeAdapter(PlanVersion)


def plan_to_json(plan: Plan) -> bytes:
    """The plan as the bytes of plan.json: the same plan gives the same bytes."""
    return PLAN_TYPE_ADAPTER.dump_json(plan, indent=1) + b"\n"


def load_plan(store: Store) -> Plan:
    """Read the plan of the run in `store`. Raises BadInput where there is none, or one of another version."""
    try:
        return parse_plan(store.read(PLAN_KEY), store.uri_of(PLAN_KEY))
    except Missing as error:
        raise Missing(
            f"{store.uri}: holds no plan. Run `imagekiln plan` first, or check the run's name."
        ) from error


def parse_plan(content: bytes, where: str) -> Plan:
    """The plan in the bytes of a plan.json. Raises BadInput."""
    try:
        if (
            version := PLAN_VERSION_TYPE_ADAPTER.validate_json(content).schema_version
        ) != PLAN_SCHEMA_VERSION:
            raise BadInput(
                f"{where}: has version {version}, and this Imagekiln reads {PLAN_SCHEMA_VERSION}. Use its own."
            )
        return PLAN_TYPE_ADAPTER.validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise BadInput(
            f"{where}: is no plan that can be read ({place}: {first['msg']}). Restore it."
        ) from error
