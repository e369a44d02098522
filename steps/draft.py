"""A plan worked out but not written: what `plan` writes and `estimate` counts."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from imagekiln.steps import adapter_files, batching, fitting, footers, lora_files, model, prompts, sources, tables
from imagekiln.steps.batching import NOTHING, Known
from imagekiln.steps.catalog import Catalog
from imagekiln.steps.cost import seconds_per_work
from imagekiln.steps.cutting import Cut, cut
from imagekiln.steps.errors import BadInput
from imagekiln.steps.identity import model_key
from imagekiln.steps.input_rules import input_rules
from imagekiln.steps.job import Job
from imagekiln.steps.lora_column import LORA_COLUMNS, LoraColumn
from imagekiln.steps.pictures import Keep, Pictures
from imagekiln.steps.plan import Counts, Input, largest_batch
from imagekiln.steps.rules import rules
from imagekiln.steps.shortcuts import further
from imagekiln.steps.tokens import PromptLengths


class Draft:
    """The images of a job, counted, refused and cut. Close it after use."""

    def __init__(
        self,
        job: Job,
        found: tuple[sources.Source, ...],
        spool: Path,
        looked_at: tuple[str, ...] = (),
        tuned: Known = NOTHING,
        keep: Keep | None = None,
    ) -> None:
        """Read the model's configuration and every prompt row; leave out what the runs `looked_at` hold.

        `keep` is told the hash and the bytes of each picture that conditions images.
        Raises BadInput, Missing, TryAgain.
        """
        self.job = job
        self.looked_at = looked_at
        self.model = model.facts(job.model)
        fitting.require(job, self.model.pipeline)
        self.adapters = adapter_files.keys(job.model)
        self.loras = lora_files.facts(job.model)
        self.size = batching.default_size(job, self.model)
        self._files = footers.inspect(found, job.columns, job.carry)
        self._catalog = Catalog(spool, job, (*rules(job, self.model), *input_rules(job, self.model)), len(job.carry))
        lengths = PromptLengths(model.configuration(job.model))
        loras = LoraColumn(job.defaults.loras, {name: each.sha256 for name, each in self.loras.items()})
        schema = prompts.schema(self._files).append(pa.field("truncated", pa.bool_()))
        schema = pa.schema([*schema, *(pa.field(name, pa.string()) for name in LORA_COLUMNS)])
        digest = adapter_files.joined(self.model.digest, self.adapters)
        key = model_key(digest, job.model.dtype, *further(job.speed))
        runs = [f"{job.output.rstrip('/')}/{run_id}" for run_id in looked_at]
        with closing(Pictures(job.limits, spool, keep)) as pictures:
            rows = _measured(prompts.batches(self._files, pictures), schema, lengths, loras)
            self._catalog.fill(schema, rows, key, self.size, runs)
        self.input = Input(len(found), sum(file.rows for file in self._files), sources.fingerprint(found))
        self._refuse_too_many()
        self.groups = self._catalog.groups
        self.batches = batching.sizes(job, self.model, self.groups, tuned)
        self.seconds_per_work = seconds_per_work(job, self.size, batching.seconds_per_work(job, self.model, tuned))
        self.cut: Cut = cut(job, self.groups, self.seconds_per_work, largest_batch(job, self.batches))

    def close(self) -> None:
        """Let go of the working files."""
        self._catalog.close()

    @property
    def counts(self) -> Counts:
        """What became of the rows."""
        images = sum(group.images for group in self.groups)
        truncated = sum(group.truncated for group in self.groups)
        rejected, duplicates = self._catalog.rejected_rows(), self._catalog.duplicate_images()
        return Counts(rejected, images, duplicates, truncated, self._catalog.existing_images())

    def rejected(self) -> Iterator[pa.RecordBatch]:
        """The refused rows, as `tables.REJECTED`."""
        return (prompts.locate(self._files, batch) for batch in self._catalog.rejected())

    def duplicates(self) -> Iterator[pa.RecordBatch]:
        """The images that are made under an earlier row, as `tables.DUPLICATE`."""
        return self._catalog.duplicates()

    def shards(self) -> Iterator[pa.Table]:
        """The image rows of each shard in turn."""
        schema = pa.schema([*tables.IMAGE_ROW, *self._files[0].carried])
        stream, waiting = self._catalog.images(), pa.Table.from_batches([], schema)
        for size in self.cut.shard_images:
            while waiting.num_rows < size:
                batch = pa.Table.from_batches([next(stream)]).rename_columns(schema.names).cast(schema)
                waiting = pa.concat_tables([waiting, batch])
            yield waiting.slice(0, size).combine_chunks()
            waiting = waiting.slice(size)

    def _refuse_too_many(self) -> None:
        count, rows, share = self._catalog.rejected_rows(), self.input.rows, self.job.limits.rejected_share
        if count and (count == rows or count > share * rows):
            first = prompts.locate(self._files, next(self._catalog.rejected(most=1))).to_pylist()[0]
            raise BadInput(
                f"{first['file']}: {count} of {rows} rows are refused, the first being row {first['row_in_file']}: "
                f"{first['column']} {first['reason']}. Correct them, or raise limits.rejected_share."
            )


def _measured(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, lengths: PromptLengths, loras: LoraColumn
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        more = [lengths.cut(batch.column("prompt")), *loras.read(batch.column("loras"))]
        yield pa.RecordBatch.from_arrays([*batch.columns, *more], schema=schema)
