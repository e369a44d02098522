"""A plan worked out but not written: what `plan` writes and `estimate` counts."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from imagekiln.steps import adapter_files, batching, fitting, footers, lora_files, model, prompts, sources, tables
from imagekiln.steps.batching import NO_TUNING, TuningEntries
from imagekiln.steps.catalog import Catalog
from imagekiln.steps.cost import seconds_per_pixel_step
from imagekiln.steps.cutting import Sharding, cut_shards
from imagekiln.steps.errors import BadInput
from imagekiln.steps.identity import model_key
from imagekiln.steps.input_rules import input_image_rules
from imagekiln.steps.job import Job
from imagekiln.steps.lora_column import LORA_COLUMNS, LoraColumnReader
from imagekiln.steps.pictures import ImageSink, InputImages
from imagekiln.steps.plan import InputFacts, PlanCounts, max_batch_size
from imagekiln.steps.rules import prompt_rules
from imagekiln.steps.shortcuts import model_key_extras
from imagekiln.steps.tokens import PromptLengths


class PlanDraft:
    """The images of a job, counted, refused and cut. Close it after use."""

    def __init__(
        self,
        job: Job,
        found: tuple[sources.SourceFile, ...],
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
        self.model = model.load_model_facts(job.model)
        fitting.require_compatibility(job, self.model.pipeline)
        self.adapters = adapter_files.adapter_keys(job.model)
        self.loras = lora_files.load_lora_facts(job.model)
        self.default_size = batching.default_image_size(job, self.model)
        self._files = footers.read_footers(found, job.columns, job.carry)
        self._catalog = Catalog(
            spool, job, (*prompt_rules(job, self.model), *input_image_rules(job, self.model)), len(job.carry)
        )
        lengths = PromptLengths(model.configuration_folder(job.model))
        loras = LoraColumnReader(job.defaults.loras, {name: each.sha256 for name, each in self.loras.items()})
        schema = prompts.prompt_schema(self._files).append(pa.field("truncated", pa.bool_()))
        schema = pa.schema([*schema, *(pa.field(name, pa.string()) for name in LORA_COLUMNS)])
        digest = adapter_files.digest_with_adapters(self.model.digest, self.adapters)
        key = model_key(digest, job.model.dtype, *model_key_extras(job.speed))
        runs = [f"{job.output.rstrip('/')}/{run_id}" for run_id in looked_at]
        with closing(InputImages(job.limits, spool, keep)) as pictures:
            rows = _with_derived_columns(prompts.iter_prompt_batches(self._files, pictures), schema, lengths, loras)
            self._catalog.fill(schema, rows, key, self.default_size, runs)
        self.input = InputFacts(len(found), sum(file.rows for file in self._files), sources.input_fingerprint(found))
        self._refuse_too_many_rejected()
        self.groups = self._catalog.groups
        self.batch_sizes = batching.choose_batch_sizes(job, self.model, self.groups, tuned)
        self.seconds_per_work = seconds_per_pixel_step(
            job, self.default_size, batching.tuned_seconds_per_work(job, self.model, tuned)
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
        return (prompts.locate_rejected_rows(self._files, batch) for batch in self._catalog.iter_rejected())

    def iter_duplicates(self) -> Iterator[pa.RecordBatch]:
        """The images that are made under an earlier row, as `tables.DUPLICATE`."""
        return self._catalog.iter_duplicates()

    def iter_shards(self) -> Iterator[pa.Table]:
        """The image rows of each shard in turn."""
        schema = pa.schema([*tables.IMAGE_ROW_SCHEMA, *self._files[0].passthrough])
        stream, waiting = self._catalog.iter_images(), pa.Table.from_batches([], schema)
        for size in self.sharding.shard_images:
            while waiting.num_rows < size:
                batch = pa.Table.from_batches([next(stream)]).rename_columns(schema.names).cast(schema)
                waiting = pa.concat_tables([waiting, batch])
            yield waiting.slice(0, size).combine_chunks()
            waiting = waiting.slice(size)

    def _refuse_too_many_rejected(self) -> None:
        count, rows, share = self._catalog.rejected_row_count(), self.input.rows, self.job.limits.rejected_share
        if count and (count == rows or count > share * rows):
            first = prompts.locate_rejected_rows(self._files, next(self._catalog.iter_rejected(most=1))).to_pylist()[0]
            raise BadInput(
                f"{first['file']}: {count} of {rows} rows are refused, the first being row {first['row_in_file']}: "
                f"{first['column']} {first['reason']}. Correct them, or raise limits.rejected_share."
            )


def _with_derived_columns(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, lengths: PromptLengths, loras: LoraColumnReader
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        more = [lengths.find_truncated(batch.column("prompt")), *loras.read(batch.column("loras"))]
        yield pa.RecordBatch.from_arrays([*batch.columns, *more], schema=schema)
