"""Adding up a run, shard after shard."""

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.acceptance import AcceptancePolicy
from imagekiln.steps.causes import FailureCounter
from imagekiln.steps.distributions import DistributionBuilder
from imagekiln.steps.plan import Plan
from imagekiln.steps.reconcile import ReconciledShard
from imagekiln.steps.stats import ShardStats, StageSeconds
from imagekiln.steps.summary import MAX_LISTED, Summary
from imagekiln.steps.throughput import summarize_throughput
from imagekiln.steps.usage import summarize_usage


class SummaryBuilder:
    """Adds up shard after shard, so that memory does not grow with the run."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._statuses: Counter[str] = Counter()
        self._marks: Counter[str] = Counter()
        self._causes, self._spread = FailureCounter(), DistributionBuilder()
        self._missing: list[str] = []
        self._missing_count = self._bytes = 0

    def add(self, shard: ReconciledShard) -> None:
        """Add one shard's images."""
        manifest = shard.manifest
        self._statuses.update(_value_counts(manifest["status"]))
        self._marks.update(_value_counts(pc.list_flatten(manifest["marks"])))
        self._bytes += pc.sum(manifest["size"]).as_py() or 0
        self._missing_count += len(shard.missing_parts)
        self._missing += shard.missing_parts[: MAX_LISTED - len(self._missing)]
        self._causes.add(manifest)
        self._spread.add(manifest)

    def add_marks(self, gate: str, images: int) -> None:
        """Add images that a gate marked once all shards were known."""
        self._marks[gate] += images

    def build(self, plan: Plan, told: Iterable[ShardStats], accepted: AcceptancePolicy, rounds: int = 0) -> Summary:
        """The sums, with what the shards of the run and of its rounds told of themselves, and what was accepted."""
        stats = list(told)
        seconds = sum((each.seconds for each in stats), StageSeconds())
        made = sum(each.images for each in stats)
        return Summary(
            run_id=plan.run_id,
            rows=plan.input.rows,
            rejected_rows=plan.counts.rejected_rows,
            duplicate_images=plan.counts.duplicate_images,
            truncated_prompts=plan.counts.truncated_prompts,
            images=plan.counts.images,
            statuses=dict(sorted(self._statuses.items())),
            bytes=self._bytes,
            failures=self._causes.most_common(MAX_LISTED),
            missing_parts=tuple(self._missing),
            missing_parts_count=self._missing_count,
            seconds=seconds,
            device_hours=seconds.total / 3600,
            images_per_second=made / seconds.total if seconds.total else 0.0,
            devices=tuple(sorted({each.device for each in stats})),
            failed_share=accepted.failed_share,
            marks={gate: self._marks[gate] for gate in plan.job.gates.marking_gates},
            accepted=accepted.accepted_gates,
            existing_images=plan.counts.existing_images,
            distributions=self._spread.build(),
            throughput=summarize_throughput(len(plan.shards), stats),
            rounds=rounds,
            price_per_hour=accepted.price_per_hour,
            usage=summarize_usage(stats),
        )


def _value_counts(column: pa.ChunkedArray) -> dict[str, int]:
    return {entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()}
