"""The plan of a run, frozen in plan.json: which images must exist, and how they are made.

Every step after planning reads the job's settings here.
"""

import os
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, cast

from pydantic import (
    AwareDatetime,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WrapSerializer,
)

from imagekiln.steps.errors import BadInput, Missing, newer_version_error
from imagekiln.steps.job.columns import MAX_SIDE
from imagekiln.steps.job.execution import DEFAULT_BATCH_IMAGES, MAX_SHARD_IMAGES
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.passes import AnyModelPass, caption_names
from imagekiln.steps.models.adapters import adapters_by_column
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.lora_files import LoraFacts
from imagekiln.steps.models.pass_models import iter_pass_jobs
from imagekiln.steps.models.passes import PassFacts, PassSizes
from imagekiln.steps.models.revisions import NamedRevision
from imagekiln.steps.runs.keys import EXPORT_KEY, PLAN_KEY, registry_key
from imagekiln.steps.runs.registry import RunId
from imagekiln.steps.runs.tables import RESERVED_COLUMNS
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.store import Store, confirm_damage, read_small
from imagekiln.steps.storage.uri import is_remote_uri

# Raise it when older plans would be misread, or when an older Imagekiln would ignore what it must
# not, such as a new field outside `job`. A new setting with a default needs no new version: older
# plans get the default, and an older Imagekiln refuses the unknown setting.
PLAN_SCHEMA_VERSION = 2  # 2: columns of shards and parts have other names, plans a time
MAX_PART_IMAGES = 16_384  # of the largest `part.images`, rounded up to whole batches
Count = Annotated[int, Field(ge=0, le=2**62)]
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


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
    """What became of the rows.

    Each image of an accepted row is planned once, or counted as a duplicate or as existing.
    """

    rejected_rows: Count
    images: Count
    duplicate_images: Count
    truncated_prompts: Count
    existing_images: Count = 0


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How many images of one size, in pixels, a batch has."""

    width: Side
    height: Side
    images: Annotated[int, Field(ge=1, le=MAX_PART_IMAGES)]


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its images, and the hash of the object that lists them."""

    images: Annotated[int, Field(ge=1, le=MAX_SHARD_IMAGES)]
    sha256: str


def _dump_without_cluster(job: Job, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
    # The cluster that a job runs on changes none of its images.
    values = cast("dict[str, object]", dump(job))
    return {name: value for name, value in values.items() if name != "cluster"}


def _is_zero(number: int) -> bool:
    return not number


def _is_none(facts: RewriteFacts | None) -> bool:
    return facts is None


def _is_empty(entries: Sized) -> bool:
    # Plans without such entries have the bytes that they had before there were any.
    return len(entries) == 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run, or of one of its rounds.

    `width` and `height` are in pixels; where the job names none, they are the model's.
    `batch_sizes` holds what was tuned for each size, and is empty where the job sets the number of
    images itself or nothing was tuned. Images of `existing_runs` were omitted. `round` is 0 for the
    run itself. In a round, `source_shards` has, for each shard, the first and the last shard of the
    run that its images come from. `revisions` are the branches and tags that were resolved to the
    commits in `job`. `created_at` is the time of planning. Where `sample_images` is not 0, the
    first shard has so many images: a sample of all. `scores` identifies the files of scores, by
    the path of the setting, `passes` those of passes, by name, and `rewrite` says which texts the
    prompts are.
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
    existing_runs: Annotated[tuple[RunId, ...], FailFast()] = ()
    round: Count = 0
    source_shards: Annotated[tuple[tuple[Count, Count], ...], FailFast()] = ()
    batch_sizes: Annotated[tuple[BatchSize, ...], FailFast()] = ()
    adapters: dict[str, str] = field(default_factory=dict)
    loras: dict[str, LoraFacts] = field(default_factory=dict)
    revisions: Annotated[tuple[NamedRevision, ...], Field(exclude_if=_is_empty)] = ()
    sample_images: Annotated[Count, Field(exclude_if=_is_zero)] = 0
    scores: Annotated[dict[str, str], Field(exclude_if=_is_empty)] = field(default_factory=dict)
    rewrite: Annotated[RewriteFacts | None, Field(exclude_if=_is_none)] = None
    passes: Annotated[dict[str, PassFacts], Field(exclude_if=_is_empty)] = field(
        default_factory=dict
    )

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


@dataclass(frozen=True, slots=True)
class PlanVersion:
    """The part of plan.json that all versions share."""

    schema_version: int
    run_id: str | None = None


PLAN_TYPE_ADAPTER: TypeAdapter[Plan] = TypeAdapter(Plan)
PLAN_VERSION_TYPE_ADAPTER: TypeAdapter[PlanVersion] = TypeAdapter(PlanVersion)


def max_batch_size(job: Job, batch_sizes: Iterable[BatchSize]) -> int:
    """The images in a job's largest batches: as tuned, as the job sets it, or the default."""
    default = job.batch.images or DEFAULT_BATCH_IMAGES
    return max((size.images for size in batch_sizes), default=default)


def creation_time() -> datetime:
    """The time for a plan that is made now, in whole seconds.

    SOURCE_DATE_EPOCH, seconds since 1970, replaces it: with equal times, two plans of one job give
    equal bytes. Raises BadInput where that is no such number.
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


def create_plan(store: Store, plan: Plan) -> Plan:
    """Write plan.json, and return the plan that is stored.

    Of two processes that plan the same, the first gives the time. Raises BadInput where another
    plan is stored.
    """
    content = plan_to_json(plan)
    if store.create(PLAN_KEY, content):
        return plan
    stored = load_plan(store)
    if plan_to_json(replace(plan, created_at=stored.created_at)) != plan_to_json(stored):
        raise BadInput(
            f"{store.uri_of(PLAN_KEY)}: exists with other content. Choose another run_id or output."
        )
    return stored


def plan_to_json(plan: Plan) -> bytes:
    """The plan as the bytes of plan.json. The same plan gives the same bytes."""
    return PLAN_TYPE_ADAPTER.dump_json(plan, indent=1) + b"\n"


@confirm_damage
def load_plan(store: Store) -> Plan:
    """Read the plan of the run in `store`.

    Raises Missing where there is none, or BadInput where it is not readable or of another version.
    """
    try:
        content = read_small(store, PLAN_KEY)
    except Missing as error:
        if _is_output(store):
            raise Missing(
                f"{store.uri}: is an output that holds runs. Name one of them: "
                f"`{format_command('runs', store.uri)}` lists them."
            ) from error
        if store.exists(EXPORT_KEY):
            raise Missing(f"{store.uri}: is an export. Name one of the runs it is from.") from error
        raise Missing(
            f"{store.uri}: holds no plan. Run `imagekiln plan` first, or check the run's name."
        ) from error
    except BadInput as error:
        if not isinstance(error.__cause__, NotADirectoryError):
            raise
        raise BadInput(
            f"{store.uri}: is a file. Name the folder of a run, such as OUTPUT/RUN_ID."
        ) from error
    return parse_plan(content, store.uri_of(PLAN_KEY))


def read_run_id(store: Store) -> str | None:
    """The name of the run that a plan.json of any version is of; None where it has none.

    Raises Missing, or BadInput where it is none.
    """
    content = read_small(store, PLAN_KEY)
    try:
        return PLAN_VERSION_TYPE_ADAPTER.validate_json(content).run_id
    except ValidationError as error:
        raise _unreadable_plan(store.uri_of(PLAN_KEY), error) from error


def _is_output(store: Store) -> bool:
    """Whether runs lie in a folder: finished ones are registered, and local ones are listed."""
    if store.exists(registry_key(0)):
        return True
    if is_remote_uri(store.uri):
        return False
    return any(
        entry.is_folder and store.exists(f"{entry.key}/{PLAN_KEY}")
        for entry in store.list_folder("")
    )


def parse_plan(content: bytes, where: str) -> Plan:
    """The plan in the bytes of a plan.json. Raises BadInput."""
    try:
        version = PLAN_VERSION_TYPE_ADAPTER.validate_json(content).schema_version
        if version == PLAN_SCHEMA_VERSION:
            plan = PLAN_TYPE_ADAPTER.validate_json(content)
            _require_consistent_counts(plan, where)
            _require_whole_groups(plan, where)
            _require_planned_files(plan, where)
            _require_columns_of_its_own(plan, where)
            return plan
    except ValidationError as error:
        raise _unreadable_plan(where, error) from error
    if version > PLAN_SCHEMA_VERSION:
        raise newer_version_error(where, version, PLAN_SCHEMA_VERSION)
    raise BadInput(
        f"{where}: has version {version}, and this Imagekiln reads {PLAN_SCHEMA_VERSION}. "
        "Use the Imagekiln that planned the run, or run the job again under another run_id."
    )


def _require_consistent_counts(plan: Plan, where: str) -> None:
    """Raise BadInput where the shards do not add up to the planned images, or lack sources."""
    images = sum(shard.images for shard in plan.shards)
    if images != plan.counts.images:
        raise BadInput(
            f"{where}: plans {plan.counts.images} images, and its shards have {images}. Restore it."
        )
    sources = plan.source_shards
    expected = len(plan.shards) if plan.round else 0
    are_ranges = all(first <= last for first, last in sources)
    are_ordered = list(sources) == sorted(sources)
    if len(sources) != expected or not (are_ranges and are_ordered):
        raise BadInput(f"{where}: has source_shards that do not fit its shards. Restore it.")


def _require_whole_groups(plan: Plan, where: str) -> None:
    """Raise BadInput where a part or shard would hold some candidates of a group, and not all."""
    shard_sizes = [shard.images for shard in plan.shards]
    sizes = [plan.part_images, *shard_sizes]
    remainders = {size % plan.job.candidates for size in sizes}
    if remainders != {0}:
        raise BadInput(f"{where}: has parts or shards that cut groups of candidates. Restore it.")


def _require_planned_files(plan: Plan, where: str) -> None:
    """Raise BadInput where the plan has not the file of each adapter and LoRA of its job."""
    model = plan.job.model
    adapters = adapters_by_column(model)
    if plan.adapters.keys() != adapters.keys():
        raise BadInput(f"{where}: has adapters that are not those of its job. Restore it.")
    if plan.loras.keys() != model.loras.keys():
        raise BadInput(f"{where}: has loras that are not those of its job. Restore it.")
    if not _has_facts_of_passes(plan):
        raise BadInput(f"{where}: has passes that are not those of its job. Restore it.")


def _has_facts_of_passes(plan: Plan) -> bool:
    """Whether the plan has the facts of each model of a pass, of the kind that the pass draws with.

    Those of a diffusion model are known by one digest.
    """
    drawing = {name for name, _ in iter_pass_jobs(plan.job)}
    passes = plan.job.passes.items()
    others = {name for name, settings in passes if isinstance(settings, AnyModelPass)}
    if plan.passes.keys() != drawing | others:
        return False
    models = {name: facts.model for name, facts in plan.passes.items() if facts.model is not None}
    if models.keys() != drawing:
        return False
    return all(plan.passes[name].digest == model.digest for name, model in models.items())


def _require_columns_of_its_own(plan: Plan, where: str) -> None:
    """Raise BadInput where a carried column has a name that the dataset has taken since."""
    job = plan.job
    chosen = (*job.carry, *job.scores, *caption_names(job.passes))
    names = sorted(RESERVED_COLUMNS.intersection(chosen))
    if names:
        raise BadInput(
            f"{where}: carries {names[0]}, which is now a column of the dataset itself. "
            "Use the Imagekiln that planned the run."
        )


def _unreadable_plan(where: str, error: ValidationError) -> BadInput:
    first = error.errors()[0]
    setting = ".".join(map(str, first["loc"])) or "the whole"
    if first["type"] == "extra_forbidden":
        return BadInput(
            f"{where}: has a setting that this Imagekiln does not know ({setting}). "
            "If a newer one planned the run, update Imagekiln; or else restore the plan."
        )
    return BadInput(f"{where}: is not a readable plan ({setting}: {first['msg']}). Restore it.")
