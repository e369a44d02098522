"""Whether a job can end before its profile's `days` are over, when its workflow is stopped."""

from dataclasses import dataclass
from math import ceil

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.budget import require_within_budget
from imagekiln.steps.plan.run_time import HOW_TO_KNOW, RunTime, estimate_by_rows
from imagekiln.steps.runs.terms import terms_of
from imagekiln.steps.runtime.figures import format_number
from imagekiln.workflows.profiles.profile import Profile

HOURS_PER_DAY = 24
MAX_PARALLELISM = 1000  # of a job
# A figure that was computed is for an H100: newer GPUs, fewer bits and compiled models are at most
# so many times as fast.
COMPUTED_MARGIN = 4
MIB_PER_GIB = 1024
# The disk that planning takes for a million rows: their texts as they are read, and once more by
# shape where there are several. Measured; docs/decisions.md has the conditions.
PLANNING_MIB_ONE_SHAPE = 279
PLANNING_MIB_SEVERAL_SHAPES = 531
SPARE_DISK = 1.3  # for longer prompts than those that were measured
# Where rows are not counted here, or have settings of their own.
BUDGET_LATER = " The budget is not checked here, but by planning and by each pod."


@dataclass(frozen=True, slots=True)
class Forecast:
    """The time of a job on the pods that it gets, in a sentence.

    `remedy` says which numbers to set where it cannot end in time; None where it can.
    """

    says: str
    remedy: str | None = None


def forecast(job: Job, profile: Profile, pods: int | None = None) -> Forecast | None:
    """How long the job takes on so many pods, by default its parallelism.

    None where no figure is known. Raises Missing, BadInput and TryAgain where the rows of its
    prompts cannot be counted.
    """
    time = estimate_by_rows(job)
    if time is None:
        return None
    return _judge(time, profile, job.cluster.parallelism if pods is None else pods)


def check_deadline(job: Job, profile: Profile) -> str:
    """How long the job takes, in a sentence, and that the disk of planning is small where it is.

    Raises BadInput where it cannot end in time, or exceeds its budget by the rows of its prompts.
    """
    terms = terms_of(job)
    later = BUDGET_LATER if terms.budget.is_limited else ""
    try:
        time = estimate_by_rows(job)
    except KilnError as error:
        return f"How long it takes is unknown from here: {error}{later}"
    if time is None:
        return f"How long it takes is unknown: {HOW_TO_KNOW}.{later}"
    if time.has_default_work:
        require_within_budget(job, time, terms, gpu=profile.gpu_name, spot=profile.spot)
        later = ""
    expected = _judge(time, profile, job.cluster.parallelism)
    if expected.remedy is not None:
        raise BadInput(f"job {job.name}: {expected.says} {expected.remedy}")
    return f"{expected.says}{_explain_small_disk(time, profile)}{later}"


def _explain_small_disk(time: RunTime, profile: Profile) -> str:
    """That the pod that plans may run out of disk, and the number to set; empty where it has it."""
    disk = profile.steps.disk
    if time.images is None or disk is None:
        return ""
    per_million = PLANNING_MIB_ONE_SHAPE if time.has_default_work else PLANNING_MIB_SEVERAL_SHAPES
    need = time.images / 1e6 * per_million / MIB_PER_GIB
    if need <= disk:
        return ""
    return (
        f" Planning {time.images:,} images takes up to {format_number(need)} GiB of disk, and "
        f"profile {profile.name} gives it {disk:g}: set "
        f"`steps: {{disk: {ceil(need * SPARE_DISK)}}}` in a profile of your own."
    )


def explain_lateness(
    gpu_hours: float, hours: float, profile: Profile, *, least_hours: float | None = None
) -> tuple[str, str] | None:
    """That a job of so many hours is stopped before it ends, and the numbers to set; None if not.

    Without numbers where `least_hours`, what it takes at the least, are within the limit.
    """
    limit = profile.days * HOURS_PER_DAY
    if hours <= limit:
        return None
    says = f"Profile {profile.name} stops a workflow after {profile.days:g} days."
    least = hours if least_hours is None else least_hours
    return says, _remedy(gpu_hours, hours, profile) if least > limit else ""


def _judge(time: RunTime, profile: Profile, pods: int) -> Forecast:
    gpus = pods * profile.gpu.count
    says = time.describe(gpus)
    hours = time.hours_on(gpus)
    late = explain_lateness(time.gpu_hours, hours, profile, least_hours=_least_hours(time, hours))
    if late is None:
        return Forecast(says)
    lateness, remedy = late
    if not remedy:
        return Forecast(f"{says} {lateness} `imagekiln estimate JOB` counts every row.")
    return Forecast(f"{says} {lateness}", remedy)


def _least_hours(time: RunTime, hours: float) -> float:
    """What the job certainly takes: nothing is certain where only planning counts its work."""
    if not time.has_default_work:
        return 0.0
    return hours if time.is_measured else hours / COMPUTED_MARGIN


def _remedy(gpu_hours: float, hours: float, profile: Profile) -> str:
    """The days to set, with one to spare for starts, or the parallelism."""
    days = ceil(hours / HOURS_PER_DAY) + 1
    remedy = f"Set `days: {days}` in a profile of your own"
    gpus = gpu_hours / (profile.days * HOURS_PER_DAY)
    pods = ceil(gpus / profile.gpu.count) + 1
    if pods <= MAX_PARALLELISM:
        remedy += f", or `cluster.parallelism: {pods}` where the quota allows it"
    return f"{remedy}."
