"""Whether the job can end in time, on the pods that the namespace's quota admits."""

from collections.abc import Sequence

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.dates import needs_date
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.run_time import HOW_TO_KNOW
from imagekiln.workflows.client.deadline import Forecast, forecast
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_quota import pods_at_once
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.profiles.profile import Profile

CHECK_ONE_DATE = "Check one date: `imagekiln doctor JOB --date 2026-11-21`."
COUNT_ELSEWHERE = "Count where the prompts can be read: `imagekiln estimate JOB`."


@doctor_check("time")
def check_run_time(
    view: ClusterView, job: Job, profile: Profile, priorities: Sequence[str]
) -> Finding:
    """The job ends before its workflow is stopped, on as many pods as the quota admits."""
    if needs_date(job):
        return unknown("How many images there are depends on the date.", CHECK_ONE_DATE)

    parallelism = job.cluster.parallelism
    pods = pods_at_once(view, profile, parallelism, priorities)
    try:
        expected = forecast(job, profile, pods)
    except KilnError as error:
        return unknown(f"The rows of the prompts cannot be counted here: {error}", COUNT_ELSEWHERE)
    if expected is None:
        return unknown(
            "The time of an image of this model is unknown.",
            f"{HOW_TO_KNOW[0].upper()}{HOW_TO_KNOW[1:]}.",
        )
    quota = "" if pods == parallelism else f" The quota admits {pods} of {parallelism} pods."
    return _finding(expected, quota)


def _finding(expected: Forecast, quota: str) -> Finding:
    says = expected.says + quota
    if expected.remedy is not None:
        return wrong(says, expected.remedy)
    return ok(says)
