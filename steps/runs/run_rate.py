"""What a finished run took, by which the next run of the same job is estimated."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.fields import Dtype
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.speed import SpeedSettings
from imagekiln.steps.job.tuning_file import throughput_settings
from imagekiln.steps.runs.amounts import MAX_AMOUNT, Amount
from imagekiln.steps.runs.keys import RATE_KEY
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.registry import read_registry
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

MAX_EARLIER_RUNS = 40  # of which all but one may be nights without images


@dataclass(frozen=True, slots=True)
class RunRate:
    """The device-seconds of a run, for its work in pixels times steps and for its shards.

    `working_seconds` passed after loading, `loading_seconds` before: repeated work is in neither.
    """

    run_id: str
    digest: str
    dtype: Dtype
    speed: SpeedSettings
    device: str
    work: Annotated[float, Field(ge=1, le=MAX_AMOUNT)]
    shards: Annotated[int, Field(ge=1, le=1e9)]
    working_seconds: Amount
    loading_seconds: Amount

    @property
    def source(self) -> str:
        """Where an estimate by this run is from."""
        return f"measured by run {self.run_id} on {self.device}"

    def gpu_hours(self, work: float, shards: int) -> float:
        """What other work takes: its drawing, and loading as often for each shard."""
        seconds = self.working_seconds * work / self.work
        return (seconds + self.loading_seconds * shards / self.shards) / 3600


RATE_TYPE_ADAPTER: TypeAdapter[RunRate] = TypeAdapter(RunRate)


def write_run_rate(
    store: Store,
    plan: Plan,
    device: str,
    work: float,
    *,
    working_seconds: float,
    loading_seconds: float,
) -> None:
    """Write what a finished run took, unless it took nothing."""
    if not work or not working_seconds:
        return
    rate = RunRate(
        run_id=plan.run_id,
        digest=plan.model.digest,
        dtype=plan.job.model.dtype,
        speed=throughput_settings(plan.job.speed),
        device=device,
        work=work,
        shards=len(plan.shards),
        working_seconds=working_seconds,
        loading_seconds=loading_seconds,
    )
    store.replace(RATE_KEY, RATE_TYPE_ADAPTER.dump_json(rate, indent=1) + b"\n")


def find_earlier_rate(job: Job, digest: str) -> RunRate | None:
    """What the latest run of a job of this name took that drew with the same model and settings.

    None where there is none under the job's output, or it cannot be read.
    """
    try:
        entries = [entry for entry in read_registry(job.output) if entry.name == job.name]
        for entry in entries[: -MAX_EARLIER_RUNS - 1 : -1]:
            rate = _read_rate(open_store(f"{job.output.rstrip('/')}/{entry.run_id}"))
            if rate is not None and _is_alike(rate, job, digest):
                return rate
    except KilnError:  # an estimate by other figures is better than none
        return None
    return None


def _read_rate(store: Store) -> RunRate | None:
    if not store.exists(RATE_KEY):
        return None
    try:
        return RATE_TYPE_ADAPTER.validate_json(store.read(RATE_KEY))
    except ValidationError:
        return None


def _is_alike(rate: RunRate, job: Job, digest: str) -> bool:
    if rate.digest != digest or rate.dtype != job.model.dtype:
        return False
    return rate.speed == throughput_settings(job.speed)
