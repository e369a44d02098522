"""The sums of a run: what was planned, what became of it, and what it took."""

from dataclasses import dataclass, field
from math import ceil

from pydantic import TypeAdapter, ValidationError

from imagekiln.steps import names
from imagekiln.steps.causes import FailureCause
from imagekiln.steps.distributions import Distributions
from imagekiln.steps.errors import BadInput
from imagekiln.steps.reconcile import MISSING_STATUS
from imagekiln.steps.stats import StageSeconds
from imagekiln.steps.storage import Store
from imagekiln.steps.throughput import Throughput
from imagekiln.steps.usage import DeviceUsage

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
        return SUMMARY_ADAPTER.validate_json(store.read(names.SUMMARY_KEY))
    except ValidationError as error:
        raise BadInput(f"{store.uri_of(names.SUMMARY_KEY)}: cannot be read. Aggregate the run again.") from error
