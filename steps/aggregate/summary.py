"""Summaries of runs: counts of planned and generated images, times and costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

import pyarrow as pa
from pydantic import JsonValue, TypeAdapter, ValidationError

from imagekiln.steps.aggregate.device_time import (
    Spending,
    Throughput,
    summarize_spending,
    summarize_throughput,
)
from imagekiln.steps.aggregate.image_counts import (
    Distributions,
    FailureCause,
    ImageCounts,
    count_images,
    find_causes,
    find_distributions,
)
from imagekiln.steps.aggregate.image_table import ImageTable
from imagekiln.steps.aggregate.reconcile import ReconciledShard
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.execution import PricePerHour
from imagekiln.steps.runs.attempts import NOTHING, Spent
from imagekiln.steps.runs.commits import Head, read_head
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, MISSING_STATUS, OUTSCORED_STATUS
from imagekiln.steps.runs.keys import commit_key, rejected_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import sum_work
from imagekiln.steps.runs.stats import (
    Count,
    Expectation,
    ShardStats,
    StageSeconds,
    elapsed_seconds,
    first_start,
    last_end,
    max_peak_memory,
    mean_busy_share,
)
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.store import Store

MAX_LISTED = 100
MIN_COMPARED_HOURS = 1 / 60  # minimum time to compare a run with its estimate


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts and times of a run.

    `statuses` include the results of retries. `seconds` and `device_hours` are sums over all
    attempts with statistics. `marks` counts images by gate, and `accepted` names gates whose limit
    is ignored. `expected` is the estimate of planning. `work` is in pixels times steps.
    `elapsed_seconds` is the wall-clock time in which any device worked. `started_at` and `ended_at`
    are Unix times in seconds. `busy_share` is the share of time after loading in which devices
    computed. `peak_memory` is the maximum number of bytes in use on a device. Optional figures are
    None if unknown.
    """

    run_id: str
    rows: Count
    rejected_rows: Count
    duplicate_images: Count
    truncated_prompts: Count
    images: Count
    statuses: dict[str, Count]
    bytes: Count
    failures: tuple[FailureCause, ...]
    missing_parts: tuple[str, ...]
    missing_parts_count: Count
    seconds: StageSeconds
    device_hours: float
    images_per_second: float
    devices: tuple[str, ...]
    failed_share: float
    marks: dict[str, Count] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
    existing_images: Count = 0
    retries: Count = 0
    rejected_list: str = ""
    distributions: Distributions = field(default_factory=Distributions)
    throughput: Throughput = field(default_factory=Throughput)
    busy_share: float | None = None
    peak_memory: int | None = None
    elapsed_seconds: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    permanent_failures: Count = 0
    spending: Spending = field(default_factory=Spending)
    work: float = 0.0
    expected: Expectation | None = None

    @property
    def estimate_error(self) -> float | None:
        """Relative error of the estimate, positive if the run took longer; None if unknown.

        Runs of less than a minute are not compared, since estimates do not include startup.
        """
        if self.expected is None or not self.expected.gpu_hours or self.missing:
            return None
        if max(self.device_hours, self.expected.gpu_hours) < MIN_COMPARED_HOURS:
            return None
        return self.device_hours / self.expected.gpu_hours - 1

    @property
    def ok(self) -> int:
        """Number of images with status ok."""
        return self.statuses.get("ok", 0)

    @property
    def missing(self) -> int:
        """Number of images that no part holds."""
        return self.statuses.get(MISSING_STATUS, 0)

    @property
    def not_ok(self) -> int:
        """Number of images that are neither ok nor outscored nor forgotten."""
        return self.images - self.ok - self.outscored - self.forgotten

    @property
    def failed(self) -> int:
        """Number of images that are not ok and not missing."""
        return self.not_ok - self.missing

    @property
    def causes_not_ok(self) -> tuple[FailureCause, ...]:
        """Causes of images that are not ok, excluding outscored candidates."""
        return tuple(cause for cause in self.failures if cause.status != OUTSCORED_STATUS)

    @property
    def outscored(self) -> int:
        """Number of candidates that were not kept."""
        return self.statuses.get(OUTSCORED_STATUS, 0)

    @property
    def forgotten(self) -> int:
        """Number of images that were taken down."""
        return self.statuses.get(FORGOTTEN_STATUS, 0)

    @property
    def retryable(self) -> int:
        """Number of images that are not ok and that `retry` generates again."""
        filtered = self.statuses.get("filtered", 0)
        return self.not_ok - filtered - self.permanent_failures

    @property
    def too_many_failed(self) -> bool:
        """Return whether the share of failed images exceeds the accepted share."""
        # Compare quotients: in floating point, 0.29 * 100 < 29, but 29 / 100 == 0.29.
        return bool(self.images) and self.failed / self.images > self.failed_share

    @property
    def share_to_accept(self) -> float:
        """Smallest `failed_share` that would accept the run, rounded up to thousandths."""
        return ceil(1000 * self.not_ok / max(1, self.images)) / 1000

    @property
    def device_seconds(self) -> float:
        """Total time of all devices, in seconds."""
        return self.device_hours * 3600

    @property
    def cost(self) -> float | None:
        """Cost of the device hours, in the currency of the price; None without a price."""
        return self.spending.cost

    @property
    def cost_per_thousand(self) -> float:
        """Cost per 1,000 images that are ok; 0 without a price."""
        return 1000 * (self.cost or 0) / max(1, self.ok)


@dataclass(frozen=True, slots=True)
class AcceptancePolicy:
    """Policy for accepting a run: the accepted share of failed images, and accepted gates.

    `price_per_hour` is one price for all devices, or a table.
    """

    failed_share: float
    accepted_gates: tuple[str, ...]
    price_per_hour: PricePerHour | None


SUMMARY_ADAPTER: TypeAdapter[Summary] = TypeAdapter(Summary)


def load_summary(store: Store) -> Summary:
    """Load the summary of a run. Raises Missing if it was not aggregated, BadInput if damaged."""
    summary = summary_of(store, read_head(store))
    if summary is None:
        raise Missing(
            f"{store.uri}: was never aggregated. Run its job to the end, or "
            f"`{format_command('aggregate', store.uri)}`, first."
        )
    return summary


def summary_of(store: Store, head: Head) -> Summary | None:
    """Read the summary in a commit; None if it has none. Raises BadInput if it is damaged."""
    if not head.commit.summary:
        return None
    try:
        return SUMMARY_ADAPTER.validate_python(head.commit.summary)
    except ValidationError as error:
        where = store.uri_of(commit_key(head.number))
        raise BadInput(f"{where}: has a summary that cannot be read. Restore it.") from error


def summary_to_json(summary: Summary) -> dict[str, JsonValue]:
    """Convert a summary to JSON, as stored in commits."""
    values: dict[str, JsonValue] = SUMMARY_ADAPTER.dump_python(summary, mode="json")
    return values


class SummaryBuilder:
    """Builder of a summary, shard by shard. Memory use is independent of the number of images."""

    def __init__(self, plan: Plan, table: ImageTable) -> None:
        """Create a builder without shards. `table` receives the images of added shards."""
        self._plan = plan
        self._table = table
        self._counts = ImageCounts()
        self._missing_parts: list[str] = []
        self._work = 0.0

    def add(self, shard: ReconciledShard) -> None:
        """Add the images of one shard."""
        self._counts += count_images(shard.manifest)
        self._table.add(shard.manifest)
        self._work += sum_work(shard.manifest, self._plan.pass_sizes)
        self._missing_parts += shard.missing_parts

    def build(
        self,
        read_manifest: Callable[[int], pa.Table],
        policy: AcceptancePolicy,
        stats: Sequence[ShardStats],
        spent: Spent = NOTHING,
        retries: int = 0,
    ) -> Summary:
        """Build the summary from the added shards and the statistics of attempts.

        `stats` has an entry per shard of the run and of retries. `spent` is the sum over all
        attempts. Examples of failures are read from the manifests.
        """
        plan = self._plan
        seconds = sum((shard.seconds for shard in stats), StageSeconds())
        generated = sum(shard.images for shard in stats)
        statuses = self._counts.statuses
        marks = dict(self._table.fetch("SELECT gate, count(*) FROM marks GROUP BY gate"))
        spending = summarize_spending(
            stats,
            spent,
            policy.price_per_hour,
            made=max(generated, plan.counts.images - statuses[MISSING_STATUS]),
            ok=statuses["ok"] + statuses[OUTSCORED_STATUS] + statuses[FORGOTTEN_STATUS],
        )
        return Summary(
            run_id=plan.run_id,
            rows=plan.input.rows,
            rejected_rows=plan.counts.rejected_rows,
            duplicate_images=plan.counts.duplicate_images,
            truncated_prompts=plan.counts.truncated_prompts,
            images=plan.counts.images,
            statuses=dict(sorted(statuses.items())),
            bytes=self._counts.bytes,
            failures=find_causes(self._table, plan, read_manifest),
            missing_parts=tuple(self._missing_parts[:MAX_LISTED]),
            missing_parts_count=len(self._missing_parts),
            seconds=seconds,
            device_hours=spending.gpu_seconds.total / 3600,
            images_per_second=generated / seconds.total if seconds.total else 0.0,
            devices=tuple(sorted({shard.device for shard in stats})),
            failed_share=policy.failed_share,
            marks={gate: marks.get(gate, 0) for gate in plan.job.marking_gates},
            accepted=policy.accepted_gates,
            existing_images=plan.counts.existing_images,
            distributions=find_distributions(self._table, plan.job.scores),
            throughput=summarize_throughput(stats),
            retries=retries,
            rejected_list=rejected_key(plan.rejected),
            busy_share=mean_busy_share(stats),
            peak_memory=max_peak_memory(stats),
            elapsed_seconds=elapsed_seconds(stats),
            started_at=first_start(stats),
            ended_at=last_end(stats),
            permanent_failures=self._counts.permanent_failures,
            spending=spending,
            work=self._work,
            expected=plan.expected,
        )
