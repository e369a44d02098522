"""The sums of a run: what was planned, what became of it, and what it took."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from imagekiln.steps.aggregate.counters import DistributionBuilder, Distributions
from imagekiln.steps.aggregate.failures import FailureCause, FailureCounter
from imagekiln.steps.aggregate.reconcile import ReconciledShard
from imagekiln.steps.aggregate.throughput import (
    DeviceUsage,
    Throughput,
    summarize_throughput,
    summarize_usage,
)
from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.image import MISSING_STATUS
from imagekiln.steps.runs.keys import SUMMARY_KEY
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.stats import ShardStats, StageSeconds
from imagekiln.steps.storage.store import Store

MAX_LISTED = 100


@dataclass(frozen=True, slots=True)
class Summary:
    """The sums of a run. `device_hours` are those that its shards told of; `bytes` those of the images.

    What became of an image is what the latest round says that made it. `seconds` has all rounds' time. `marks` has the
    images that each gate marked, and every gate that looked; `accepted` the gates whose share was let pass.
    `price_per_hour` is what the job says that a device costs; what has a default may be absent in an older summary.
    """

    run_id: str
    rows: int
    rejected_rows: int
    duplicate_images: int
    truncated_prompts: int
    images: int
    statuses: dict[str, int]
    bytes: int
    failures: tuple[FailureCause, ...]
    missing_parts: tuple[str, ...]
    missing_parts_count: int
    seconds: StageSeconds
    device_hours: float
    images_per_second: float
    devices: tuple[str, ...]
    failed_share: float
    marks: dict[str, int] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
    existing_images: int = 0
    rounds: int = 0
    distributions: Distributions = field(default_factory=Distributions)
    throughput: Throughput = field(default_factory=Throughput)
    price_per_hour: float | None = None
    usage: DeviceUsage = field(default_factory=DeviceUsage)

    @property
    def ok(self) -> int:
        """Images that are as they should be."""
        return self.statuses.get("ok", 0)

    @property
    def missing(self) -> int:
        """Images that are unaccounted for."""
        return self.statuses.get(MISSING_STATUS, 0)

    @property
    def not_ok(self) -> int:
        """Images that are missing, or have a status other than ok."""
        return self.images - self.ok

    @property
    def too_many_failed(self) -> bool:
        """Whether a larger share of images is not ok than is accepted."""
        return self.not_ok > self.failed_share * self.images

    @property
    def share_to_accept(self) -> float:
        """The smallest share of images that are not ok, in thousandths, with which the run would be accepted."""
        return ceil(1000 * self.not_ok / self.images) / 1000 if self.images else 0.0

    @property
    def cost(self) -> float | None:
        """What the run's device hours cost, in the unit of the price; None without one."""
        return None if self.price_per_hour is None else self.device_hours * self.price_per_hour

    @property
    def cost_per_thousand(self) -> float:
        """What 1,000 images that are ok cost; 0 without a price."""
        return 1000 * (self.cost or 0) / max(1, self.ok)


SUMMARY_ADAPTER: TypeAdapter[Summary] = TypeAdapter(Summary)


def load_summary(store: Store) -> Summary:
    """The sums of a finished run. Raises Missing, or BadInput where they do not read back."""
    try:
        return SUMMARY_ADAPTER.validate_json(store.read(SUMMARY_KEY))
    except ValidationError as error:
        raise BadInput(
            f"{store.uri_of(SUMMARY_KEY)}: cannot be read. Aggregate the run again."
        ) from error


def _value_counts(column: pa.ChunkedArray) -> dict[str, int]:
    return {entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()}


@dataclass(frozen=True, slots=True)
class AcceptancePolicy:
    """What a person said of a run: the share of images that need not be ok, the gates whose share does not count,
    and what a device costs an hour.
    """

    failed_share: float
    accepted_gates: tuple[str, ...]
    price_per_hour: float | None


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

    def build(
        self, plan: Plan, told: Iterable[ShardStats], accepted: AcceptancePolicy, rounds: int = 0
    ) -> Summary:
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
