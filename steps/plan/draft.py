"""A plan worked out but not written: what `plan` writes and `estimate` counts."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.adapters import adapter_keys, digest_with_adapters
from imagekiln.steps.models.compatibility import model_key_extras, require_compatibility
from imagekiln.steps.models.facts import configuration_folder, default_image_size, load_model_facts
from imagekiln.steps.models.lora_files import load_lora_facts
from imagekiln.steps.models.performance import seconds_per_pixel_step
from imagekiln.steps.plan.batch_sizes import (
    NO_TUNING,
    TuningEntries,
    choose_batch_sizes,
    tuned_seconds_per_work,
)
from imagekiln.steps.plan.catalog import Catalog
from imagekiln.steps.plan.columns import LORA_COLUMNS, LoraColumnReader
from imagekiln.steps.plan.identity import model_key
from imagekiln.steps.plan.input_files import SourceFile, input_fingerprint, read_footers
from imagekiln.steps.plan.input_images import ImageSink, InputImages
from imagekiln.steps.plan.prompt_length import PromptLengths
from imagekiln.steps.plan.prompts import iter_prompt_batches, locate_rejected_rows, prompt_schema
from imagekiln.steps.plan.rules import input_image_rules, prompt_rules
from imagekiln.steps.plan.sharding import Sharding, cut_shards
from imagekiln.steps.runs.plan import InputFacts, PlanCounts, max_batch_size
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA


class PlanDraft:
    """The images of a job, counted, refused and cut. Close it after use."""

    def __init__(
        self,
        job: Job,
        found: tuple[SourceFile, ...],
        spool: Path,
        looked_at: tuple[str, ...] = (),
        tuned: TuningEntries = NO_TUNING,
        keep: ImageSink | None = None,
    ) -> None:
        """Read the model's configuration and every prompt row; leave out what the runs `looked_at` hold.

        `keep` is told the hash and the bytes of each picture that conditions images.
        Raises BadInput, Missing, TryAgain.
        """
        self.job = job
        self.existing_runs = looked_at
        self.model = load_model_facts(job.model)
        require_compatibility(job, self.model.pipeline)
        self.adapters = adapter_keys(job.model)
        self.loras = load_lora_facts(job.model)
        self.default_size = default_image_size(job, self.model)
        self._files = read_footers(found, job.columns, job.carry)
        self._catalog = Catalog(
            spool,
            job,
            (*prompt_rules(job, self.model), *input_image_rules(job, self.model)),
            len(job.carry),
        )
        lengths = PromptLengths(configuration_folder(job.model))
        loras = LoraColumnReader(
            job.defaults.loras, {name: each.sha256 for name, each in self.loras.items()}
        )
        schema = prompt_schema(self._files).append(pa.field("truncated", pa.bool_()))
        schema = pa.schema([*schema, *(pa.field(name, pa.string()) for name in LORA_COLUMNS)])
        digest = digest_with_adapters(self.model.digest, self.adapters)
        key = model_key(digest, job.model.dtype, *model_key_extras(job.speed))
        runs = [f"{job.output.rstrip('/')}/{run_id}" for run_id in looked_at]
        with closing(InputImages(job.limits, spool, keep)) as pictures:
            rows = _with_derived_columns(
                iter_prompt_batches(self._files, pictures), schema, lengths, loras
            )
            self._catalog.fill(schema, rows, key, self.default_size, runs)
        self.input = InputFacts(
            len(found), sum(file.rows for file in self._files), input_fingerprint(found)
        )
        self._refuse_too_many_rejected()
        self.groups = self._catalog.groups
        self.batch_sizes = choose_batch_sizes(job, self.model, self.groups, tuned)
        self.seconds_per_work = seconds_per_pixel_step(
            job, self.default_size, tuned_seconds_per_work(job, self.model, tuned)
        )
        self.sharding: Sharding = cut_shards(
            job, self.groups, self.seconds_per_work, max_batch_size(job, self.batch_sizes)
        )

    def close(self) -> None:
        """Let go of the working files."""
        self._catalog.close()

    @property
    def counts(self) -> PlanCounts:
        """What became of the rows."""
        images = sum(group.images for group in self.groups)
        truncated = sum(group.truncated for group in self.groups)
        rejected, duplicates = self._catalog.rejected_row_count(), self._catalog.duplicate_count()
        return PlanCounts(rejected, images, duplicates, truncated, self._catalog.existing_count())

    def iter_rejected(self) -> Iterator[pa.RecordBatch]:
        """The refused rows, as `tables.REJECTED`."""
        return (locate_rejected_rows(self._files, batch) for batch in self._catalog.iter_rejected())

    def iter_duplicates(self) -> Iterator[pa.RecordBatch]:
        """The images that are made under an earlier row, as `tables.DUPLICATE`."""
        return self._catalog.iter_duplicates()

    def iter_shards(self) -> Iterator[pa.Table]:
        """The image rows of each shard in turn."""
        schema = pa.schema([*IMAGE_ROW_SCHEMA, *self._files[0].passthrough])
        stream, waiting = self._catalog.iter_images(), pa.Table.from_batches([], schema)
        for size in self.sharding.shard_images:
            while waiting.num_rows < size:
                batch = (
                    pa.Table.from_batches([next(stream)]).rename_columns(schema.names).cast(schema)
                )
                waiting = pa.concat_tables([waiting, batch])
            yield waiting.slice(0, size).combine_chunks()
            waiting = waiting.slice(size)

    def _refuse_too_many_rejected(self) -> None:
        count, rows, share = (
            self._catalog.rejected_row_count(),
            self.input.rows,
            self.job.limits.rejected_share,
        )
        if count and (count == rows or count > share * rows):
            first = locate_rejected_rows(
                self._files, next(self._catalog.iter_rejected(most=1))
            ).to_pylist()[0]
            raise BadInput(
                f"{first['file']}: {count} of {rows} rows are refused, the first being row {first['row_in_file']}: "
                f"{first['column']} {first['reason']}. Correct them, or raise limits.rejected_share."
            )


def _with_derived_columns(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    lengths: PromptLengths,
    loras: LoraColumnReader,
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        more = [lengths.find_truncated(batch.column("prompt")), *loras.read(batch.column("loras"))]
        yield pa.RecordBatch.from_arrays([*batch.columns, *more], schema=schema)
