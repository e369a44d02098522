"""A plan that is worked out but not written: what `plan` writes and `estimate` counts."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import dataset_name
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.compatibility import require_quantizable_loras
from imagekiln.steps.models.facts import default_image_size
from imagekiln.steps.models.loras import parse_loras
from imagekiln.steps.models.pass_models import iter_pass_jobs
from imagekiln.steps.models.passes import PassSizes
from imagekiln.steps.models.performance import time_figure
from imagekiln.steps.models.resolve import ResolvedModel
from imagekiln.steps.models.samplers import fitting_samplers
from imagekiln.steps.models.single_file import scheduler_changes
from imagekiln.steps.plan.batch_sizes import TuningEntries, choose_batch_sizes, tuned_figure
from imagekiln.steps.plan.catalog import Catalog, catalog_images, write_images
from imagekiln.steps.plan.cell_notes import CellNotes
from imagekiln.steps.plan.column_names import describe_unread
from imagekiln.steps.plan.column_readers import passthrough_names
from imagekiln.steps.plan.derived_columns import DERIVED_FIELDS, DerivedColumns
from imagekiln.steps.plan.existing_images import count_split_groups
from imagekiln.steps.plan.image_sql import images_sql, model_key
from imagekiln.steps.plan.input_files import COLUMN_KINDS, InputFile, input_fingerprint
from imagekiln.steps.plan.input_images import ImageSink, InputImages
from imagekiln.steps.plan.prompt_batches import empty_columns, iter_prompt_batches, prompt_schema
from imagekiln.steps.plan.rejected_rows import (
    RejectionCause,
    find_rejection_causes,
    locate_rejected_rows,
)
from imagekiln.steps.plan.rules import NOT_UTF8, first_violation_sql, rejection_rules
from imagekiln.steps.plan.run_time import SECONDS_PER_HOUR, RunTime
from imagekiln.steps.plan.sampling import PlanSample, choose_sample, read_sample
from imagekiln.steps.plan.sharding import Sharding, cut_shards, work_per_image
from imagekiln.steps.runs.plan import (
    BatchSize,
    InputFacts,
    PlanCounts,
    RewriteFacts,
    max_batch_size,
)
from imagekiln.steps.runs.shard import with_final_sizes
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.scratch import Database

MAX_DESCRIBED_CAUSES = 5
FUSED_LORAS = "fused-loras"  # they change the last digits of every image
# Takes rejected rows, as REJECTED_SCHEMA, and returns the URI of the object that lists them.
RejectedSink: TypeAlias = Callable[[Iterator[pa.RecordBatch]], str]


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What a plan follows from, read before any row: the job, its model, its files, its tuning.

    `existing_runs` are the ids of the runs under the job's output whose images are omitted. With
    `sample_images`, a sample of so many images is the first shard.
    """

    job: Job
    model: ResolvedModel
    files: tuple[InputFile, ...]
    tuning: TuningEntries
    existing_runs: tuple[str, ...] = ()
    sample_images: int = 0
    rewrite: RewriteFacts | None = None

    @property
    def has_loras_by_row(self) -> bool:
        """Whether there is a column for LoRAs. No cell counts: ids do not depend on other rows."""
        return "loras" not in empty_columns(self.files)

    @property
    def fused_loras(self) -> str | None:
        """The LoRAs, as canonical text, that all images are drawn with; None without any."""
        if self.has_loras_by_row:
            return None
        return parse_loras(self.job.defaults.loras, self.job.model.loras).canonical


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """The images of a job, validated, grouped and cut. Sizes are in pixels.

    `work` is in pixels times steps. `time` is None where there is no figure for what an image
    takes, `sample` where the first shard is one like the others. `sizes` are what passes give,
    `notes` say what a person should know of the input.
    """

    files: tuple[InputFile, ...]
    catalog: Catalog
    default_size: tuple[int, int]
    batch_sizes: tuple[BatchSize, ...]
    sharding: Sharding
    work: float
    time: RunTime | None
    sizes: PassSizes
    notes: tuple[str, ...] = ()
    sample: PlanSample | None = None

    @property
    def input(self) -> InputFacts:
        """What was read."""
        return InputFacts(
            files=len(self.files),
            rows=_count_rows(self.files),
            sha256=input_fingerprint(self.files),
        )

    @property
    def counts(self) -> PlanCounts:
        """What became of the rows."""
        return self.catalog.counts

    @property
    def rejection_causes(self) -> tuple[RejectionCause, ...]:
        """Why rows were rejected, the most frequent reasons first."""
        return find_rejection_causes(self.files, self.catalog)

    def iter_rejected(self) -> Iterator[pa.RecordBatch]:
        """The rejected rows, as REJECTED_SCHEMA."""
        return locate_rejected_rows(self.files, self.catalog.iter_rejected())

    def iter_shards(self) -> Iterator[pa.Table]:
        """The image rows of each shard in turn, with the sizes in which images are stored."""
        for rows in self._iter_drawn_shards():
            yield with_final_sizes(rows, self.sizes)

    def _iter_drawn_shards(self) -> Iterator[pa.Table]:
        carried = [field.with_name(dataset_name(field.name)) for field in self.files[0].passthrough]
        schema = pa.schema([*IMAGE_ROW_SCHEMA, *carried])
        sizes = self.sharding.shard_images
        batches = self.catalog.iter_images()
        if self.sample is not None:
            sampled = read_sample(self.catalog, self.sample)
            sampled = sampled.rename_columns(schema.names)
            yield sampled.cast(schema).combine_chunks()
            sizes = sizes[1:]
            numbers = np.sort(self.sample.numbers)
            batches = self.catalog.iter_images(self.sample.rest, numbers)
        waiting = pa.Table.from_batches([], schema)
        for size in sizes:
            while waiting.num_rows < size:
                batch = next(batches)
                rows = pa.Table.from_batches([batch])
                rows = rows.rename_columns(schema.names)
                rows = rows.cast(schema)
                waiting = pa.concat_tables([waiting, rows])
            yield waiting.slice(0, size).combine_chunks()
            waiting = waiting.slice(size)


@contextmanager
def make_draft(
    inputs: PlanInputs,
    scratch: Path,
    store_image: ImageSink | None = None,
    store_rejected: RejectedSink | None = None,
) -> Iterator[PlanDraft]:
    """Work out the plan of a job; the draft can be read inside the `with` block.

    `scratch` should have room for every image's texts, twice and uncompressed. `store_image`
    receives the hash and the bytes of each input image, `store_rejected` the rejected rows where
    they are too many.
    Raises BadInput, Missing, TryAgain.
    """
    with closing(Database(scratch)) as database:
        notes = CellNotes()
        catalog = _make_images(inputs, database, scratch, store_image, notes)
        _refuse_too_many_rejected(inputs, catalog, store_rejected)
        _refuse_split_groups(inputs, catalog)
        conversion = [note for file in inputs.files for note in file.source.notes]
        yield replace(_cut(inputs, catalog), notes=(*conversion, *notes.describe()))


def _make_images(
    inputs: PlanInputs,
    database: Database,
    scratch: Path,
    store_image: ImageSink | None,
    notes: CellNotes,
) -> Catalog:
    """Read and validate every row, and group the images of the valid ones."""
    job = inputs.job
    model = inputs.model
    fit = fitting_samplers(model.configuration, scheduler_changes(job.model))
    pass_fits = {
        name: fitting_samplers(model.pass_configurations[name], scheduler_changes(pass_job.model))
        for name, pass_job in iter_pass_jobs(job)
    }
    rules = rejection_rules(job, model.facts, fit, model.pass_sizes, pass_fits)
    passthrough = passthrough_names(len(job.carried_columns))
    if inputs.has_loras_by_row:
        require_quantizable_loras(job)
    fused = () if inputs.fused_loras is None else (FUSED_LORAS,)
    key = model_key(
        model.common_digest,
        job.model.dtype,
        *model.key_extras,
        *fused,
    )
    violation = first_violation_sql(rules)
    empty = empty_columns(inputs.files)
    sql = images_sql(job, model.facts, key, violation, passthrough, empty)
    schema = pa.schema([*prompt_schema(inputs.files), *DERIVED_FIELDS])
    images_file = scratch / "images.arrow"
    rows = _read_rows(inputs, InputImages(store_image), notes)
    write_images(database, schema, rows, sql, images_file)
    output = job.output.rstrip("/")
    runs = [f"{output}/{run_id}" for run_id in inputs.existing_runs]
    return catalog_images(
        database,
        images_file,
        rules,
        passthrough,
        runs,
        job.candidates,
    )


def _read_rows(
    inputs: PlanInputs, input_images: InputImages, notes: CellNotes
) -> Iterator[pa.RecordBatch]:
    model = inputs.model
    lora_digests = {name: lora.sha256 for name, lora in model.loras.items()}
    job = inputs.job
    configurations = [model.configuration, *model.pass_configurations.values()]
    derived = DerivedColumns(configurations, job.defaults.loras, lora_digests)
    batches = iter_prompt_batches(inputs.files, input_images, notes)
    return map(derived.append_to, batches)


def _refuse_too_many_rejected(
    inputs: PlanInputs, catalog: Catalog, store_rejected: RejectedSink | None
) -> None:
    rejected = catalog.counts.rejected_rows
    if not rejected:
        return
    rows = _count_rows(inputs.files)
    share = rejected / rows
    limit = inputs.job.limits.rejected_share
    if rejected < rows and share <= limit:
        return
    causes = find_rejection_causes(inputs.files, catalog)
    remedy = ""
    if any(cause.reason != NOT_UTF8 for cause in causes):
        remedy = (
            f" {100 * share:.3g} % of the rows are rejected, and the limit is {100 * limit:.3g} %. "
            "Correct the input, or raise limits.rejected_share."
        )
    if store_rejected is not None:
        uri = store_rejected(locate_rejected_rows(inputs.files, catalog.iter_rejected()))
        remedy += f" All are listed in {uri}."
    were = "was" if rejected == 1 else "were"
    subject = f"{causes[0].file}: {rejected} of {pluralize(rows, 'row')} {were} rejected:"
    *clauses, advice = describe_causes(causes)
    advice += remedy
    if len(clauses) == 1:
        raise BadInput(f"{subject} {clauses[0]}. {advice}")
    lines = [f"  {clause}" for clause in clauses]
    raise BadInput(subject, *lines, advice)


def _refuse_split_groups(inputs: PlanInputs, catalog: Catalog) -> None:
    """Raise BadInput where rows have some of an earlier row's candidates."""
    candidates = catalog.candidates
    if candidates == 1:
        return
    counts = count_split_groups(catalog.database, candidates)
    for cause in find_rejection_causes(inputs.files, catalog, counts):
        raise BadInput(
            f"{cause.file}: {cause.describe()}. Rows are counted from 0, without a header. Leave "
            f"the seed empty and give each row an id, or set seeds at least {candidates} apart."
        )


def describe_causes(causes: tuple[RejectionCause, ...]) -> list[str]:
    """The most frequent causes, a line each, and at last how rows are counted and what to do."""
    clauses = [cause.describe() for cause in causes[:MAX_DESCRIBED_CAUSES]]
    omitted = len(causes) - len(clauses)
    if omitted:
        clauses.append(f"and {pluralize(omitted, 'other reason')}")
    remedy = ""
    if any(cause.reason == NOT_UTF8 for cause in causes):
        remedy = " Save the file as UTF-8."
    settings = dict.fromkeys(cause.setting or "" for cause in causes)
    for setting in settings:
        remedy += describe_unread(setting)
    kinds = {COLUMN_KINDS.get(setting) for setting in settings}
    if kinds & {"integer", "number"}:
        remedy += " An empty cell takes the job's value."
    return [*clauses, f"Rows are counted from 0, without a header.{remedy}"]


def _cut(inputs: PlanInputs, catalog: Catalog) -> PlanDraft:
    """Choose the batch sizes, and cut the images into parts and shards."""
    job = inputs.job
    facts = inputs.model.facts
    passes = inputs.model.pass_sizes
    groups = (
        replace(group, pass_work=passes.work((group.width, group.height), group.steps))
        for group in catalog.groups
    )
    catalog = replace(catalog, groups=tuple(groups))
    batch_sizes = choose_batch_sizes(job, facts, catalog.groups, inputs.tuning)
    figure = time_figure(job, facts, tuned_figure(job, facts, inputs.tuning))
    seconds = None if figure is None else figure.seconds_per_work
    sample = None
    if inputs.sample_images and catalog.groups:
        sample = choose_sample(catalog, inputs.sample_images)
    rest = None if sample is None else sample.rest
    largest_batch = max_batch_size(job, batch_sizes)
    sharding = cut_shards(job, catalog.groups, seconds, largest_batch, rest)
    work = sum(group.images * work_per_image(group) for group in catalog.groups)
    time = None
    if figure is not None:
        # What a step of another model takes is not known.
        is_firm = not inputs.model.pass_configurations
        time = RunTime(
            figure.seconds_per_work * work / SECONDS_PER_HOUR,
            figure.source,
            len(sharding.shard_images),
            is_measured=figure.is_measured,
            device=figure.device,
            is_firm=is_firm,
        )
    return PlanDraft(
        files=inputs.files,
        catalog=catalog,
        default_size=default_image_size(job, facts),
        batch_sizes=batch_sizes,
        sharding=sharding,
        work=work,
        time=time,
        sizes=passes,
        sample=sample,
    )


def _count_rows(files: tuple[InputFile, ...]) -> int:
    return sum(file.rows for file in files)
