"""Drafts of plans: `plan` writes a draft, `estimate` only counts its images and time."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import dataset_name
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.checkpoints import scheduler_changes
from imagekiln.steps.models.families import require_quantizable_loras
from imagekiln.steps.models.loras import parse_loras
from imagekiln.steps.models.own_settings import fitting_samplers
from imagekiln.steps.models.passes import iter_pass_jobs
from imagekiln.steps.models.performance import TimeFigure, time_figure
from imagekiln.steps.models.resolve import ResolvedModel
from imagekiln.steps.plan.catalog import Catalog, catalog_images, write_images
from imagekiln.steps.plan.catalog_sql import split_groups
from imagekiln.steps.plan.columns import describe_unread, passthrough_names
from imagekiln.steps.plan.derived_columns import DERIVED_FIELDS, DerivedColumns
from imagekiln.steps.plan.image_sql import images_sql, model_key
from imagekiln.steps.plan.input_files import InputFile
from imagekiln.steps.plan.input_images import ImageSink, InputImages, read_input_image
from imagekiln.steps.plan.prompt_batches import (
    CellNotes,
    empty_columns,
    iter_prompt_batches,
    prompt_schema,
)
from imagekiln.steps.plan.rejected_rows import (
    RejectionCause,
    find_rejection_causes,
    locate_rejected_rows,
)
from imagekiln.steps.plan.rules import NOT_UTF8, RejectionRule, first_violation_sql, rejection_rules
from imagekiln.steps.plan.sampling import PlanSample, choose_sample, read_sample
from imagekiln.steps.plan.sharding import (
    Sharding,
    TuningEntries,
    choose_batch_sizes,
    cut_shards,
    tuned_figure,
    work_per_image,
)
from imagekiln.steps.plan.source_runs import read_run_image
from imagekiln.steps.runs.plan import (
    BatchSize,
    RewriteFacts,
    max_batch_size,
)
from imagekiln.steps.runs.shard import with_final_sizes
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.scratch import Database

FUSED_LORAS = "fused-loras"  # fusing changes the last digits of every pixel value
# Takes rejected rows, as REJECTED_SCHEMA, and returns the URI of the object that lists them.
RejectedSink: TypeAlias = Callable[[Iterator[pa.RecordBatch]], str]


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Inputs of planning: the job, its model, input files and tuning, read before any row.

    Images in `existing_runs` are omitted. With `sample_images`, the first shard is a sample.
    """

    job: Job
    model: ResolvedModel
    files: tuple[InputFile, ...]
    tuning: TuningEntries
    existing_runs: tuple[str, ...] = ()
    sample_images: int = 0
    rewrite: RewriteFacts | None = None

    @property
    def rows(self) -> int:
        """Total rows of all input files."""
        return sum(file.rows for file in self.files)

    @property
    def has_loras_by_row(self) -> bool:
        """Return whether the input has a LoRA column, even if all of its cells are empty.

        An image's id must not depend on the cells of other rows.
        """
        return "loras" not in empty_columns(self.files)

    @property
    def fused_loras(self) -> str | None:
        """Canonical form of the LoRAs that all images share; None without LoRAs."""
        if self.has_loras_by_row:
            return None
        return parse_loras(self.job.defaults.loras, self.job.model.loras).canonical


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A draft of a plan: the images of a job, validated, grouped and cut into shards.

    `work` is in pixels times steps, and `figure` is its time if known. `notes` are messages to the
    user. With `sample`, the first shard holds the sample.
    """

    inputs: PlanInputs
    catalog: Catalog
    batch_sizes: tuple[BatchSize, ...]
    sharding: Sharding
    work: float
    figure: TimeFigure | None
    notes: tuple[str, ...]
    sample: PlanSample | None = None

    def iter_shards(self) -> Iterator[pa.Table]:
        """Yield the image rows of each shard, with the sizes of the stored images."""
        schema = IMAGE_ROW_SCHEMA
        for field in self.inputs.files[0].passthrough:
            schema = schema.append(field.with_name(dataset_name(field.name)))
        sampled = None if self.sample is None else np.sort(self.sample.numbers)
        batches = self.catalog.iter_images(sampled)
        if self.sample is not None:
            batches = chain(read_sample(self.catalog, self.sample).to_batches(), batches)
        waiting = schema.empty_table()
        for size in self.sharding.shard_images:
            while waiting.num_rows < size:
                rows = pa.Table.from_batches([next(batches)])
                rows = rows.rename_columns(schema.names).cast(schema)
                waiting = pa.concat_tables([waiting, rows])
            shard = waiting.slice(0, size).combine_chunks()
            waiting = waiting.slice(size)
            yield with_final_sizes(shard, self.inputs.model.pass_sizes)


@contextmanager
def make_draft(
    inputs: PlanInputs,
    scratch: Path,
    store_image: ImageSink | None = None,
    store_rejected: RejectedSink | None = None,
) -> Iterator[PlanDraft]:
    """Create a draft of the job's plan, readable inside the `with` block.

    `scratch` needs room for every image row twice. `store_image` receives the hash and bytes of
    each input image. `store_rejected` receives the rejected rows if they exceed the job's limit.
    Raises BadInput, Missing, TryAgain.
    """
    with closing(Database(scratch)) as database:
        notes = CellNotes()
        catalog = _make_images(
            inputs,
            database,
            scratch,
            store_image,
            notes,
        )
        _refuse_too_many_rejected(inputs, catalog, store_rejected)
        _refuse_split_groups(inputs, catalog)
        yield _cut(inputs, catalog, notes.describe())


def _make_images(
    inputs: PlanInputs,
    database: Database,
    scratch: Path,
    store_image: ImageSink | None,
    notes: CellNotes,
) -> Catalog:
    job = inputs.job
    model = inputs.model
    rules = _make_rules(inputs)
    passthrough = passthrough_names(len(job.carried_columns))
    if inputs.has_loras_by_row:
        require_quantizable_loras(job)
    fused = () if inputs.fused_loras is None else (FUSED_LORAS,)
    extras = [*model.key_extras, *fused]
    key = model_key(model.common_digest, job.model.dtype, *extras)
    violation = first_violation_sql(rules)
    empty = empty_columns(inputs.files)
    sql = images_sql(
        job,
        model.facts,
        key,
        violation,
        passthrough,
        empty,
    )
    schema = pa.schema([*prompt_schema(inputs.files), *DERIVED_FIELDS])
    images_file = scratch / "images.arrow"
    configurations = [model.configuration, *model.pass_configurations.values()]
    lora_digests = {name: lora.sha256 for name, lora in model.loras.items()}
    derived = DerivedColumns(configurations, job.defaults.loras, lora_digests)
    read = read_input_image if job.source_run is None else read_run_image
    batches = iter_prompt_batches(inputs.files, InputImages(store_image, read), notes)
    rows = map(derived.append_to, batches)
    write_images(
        database,
        schema,
        rows,
        sql,
        images_file,
    )
    runs = [f"{job.output.rstrip('/')}/{run_id}" for run_id in inputs.existing_runs]
    return catalog_images(
        database,
        images_file,
        rules,
        passthrough,
        runs,
        job.candidates,
    )


def _make_rules(inputs: PlanInputs) -> tuple[RejectionRule, ...]:
    job = inputs.job
    model = inputs.model
    fit = fitting_samplers(model.configuration, scheduler_changes(job.model))
    pass_fits = {
        name: fitting_samplers(model.pass_configurations[name], scheduler_changes(pass_job.model))
        for name, pass_job in iter_pass_jobs(job)
    }
    return rejection_rules(
        job,
        model.facts,
        fit,
        model.pass_sizes,
        pass_fits,
    )


def _refuse_too_many_rejected(
    inputs: PlanInputs, catalog: Catalog, store_rejected: RejectedSink | None
) -> None:
    rejected = catalog.counts.rejected_rows
    if not rejected:
        return
    rows = inputs.rows
    share = rejected / rows
    limit = inputs.job.limits.rejected_share
    if rejected < rows and share <= limit:
        return
    causes = find_rejection_causes(inputs.files, catalog)
    *clauses, advice = describe_causes(causes)
    if any(cause.reason != NOT_UTF8 for cause in causes):
        advice += (
            f" {100 * share:.3g} % of the rows are rejected, and the limit is {100 * limit:.3g} %. "
            "Correct the input, or raise limits.rejected_share."
        )
    if store_rejected is not None:
        uri = store_rejected(locate_rejected_rows(inputs.files, catalog))
        advice += f" All are listed in {uri}."
    were = "was" if rejected == 1 else "were"
    subject = f"{causes[0].file}: {rejected} of {pluralize(rows, 'row')} {were} rejected:"
    if len(clauses) == 1:
        raise BadInput(f"{subject} {clauses[0]}. {advice}")
    lines = [f"  {clause}" for clause in clauses]
    raise BadInput(subject, *lines, advice)


def _refuse_split_groups(inputs: PlanInputs, catalog: Catalog) -> None:
    """Raise BadInput if a row shares some, but not all, candidates with an earlier row."""
    candidates = catalog.candidates
    if candidates == 1:
        return
    counts = catalog.database.fetch_table(split_groups(candidates))
    for cause in find_rejection_causes(inputs.files, catalog, counts):
        raise BadInput(
            f"{cause.file}: {cause.describe()}. Rows are counted from 0, without a header. Leave "
            f"the seed empty and give each row an id, or set seeds at least {candidates} apart."
        )


def describe_causes(causes: tuple[RejectionCause, ...]) -> list[str]:
    """Return a clause per cause, and advice as the last item."""
    remedy = ""
    if any(cause.reason == NOT_UTF8 for cause in causes):
        remedy = " Save the file as UTF-8."
    settings = dict.fromkeys(cause.setting or "" for cause in causes)
    for setting in settings:
        remedy += describe_unread(setting)
    clauses = [cause.describe() for cause in causes]
    return [*clauses, f"Rows are counted from 0, without a header.{remedy}"]


def _cut(inputs: PlanInputs, catalog: Catalog, notes: tuple[str, ...]) -> PlanDraft:
    job = inputs.job
    facts = inputs.model.facts
    passes = inputs.model.pass_sizes
    groups = (
        replace(group, pass_work=passes.work((group.width, group.height), group.steps))
        for group in catalog.groups
    )
    catalog = replace(catalog, groups=tuple(groups))
    batch_sizes = choose_batch_sizes(
        job,
        facts,
        catalog.groups,
        inputs.tuning,
    )
    figure = time_figure(job, facts, tuned_figure(job, facts, inputs.tuning))
    seconds = None if figure is None else figure.seconds_per_work
    sample = None
    if inputs.sample_images and catalog.groups:
        sample = choose_sample(catalog, inputs.sample_images)
    rest = None if sample is None else sample.rest
    largest_batch = max_batch_size(job, batch_sizes)
    sharding = cut_shards(
        job,
        catalog.groups,
        seconds,
        largest_batch,
        rest,
    )
    work = sum(group.images * work_per_image(group) for group in catalog.groups)
    return PlanDraft(
        inputs=inputs,
        catalog=catalog,
        batch_sizes=batch_sizes,
        sharding=sharding,
        work=work,
        figure=figure,
        notes=notes,
        sample=sample,
    )
