"""Types that the functions of `imagekiln` and `imagekiln.cluster` return."""

from imagekiln.steps.aggregate.preview import Preview
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.dataset.dataset import Dataset
from imagekiln.steps.export.push import PushResult
from imagekiln.steps.export.step import ExportResult
from imagekiln.steps.job.tuning_file import TuningResult
from imagekiln.steps.local import RunResult
from imagekiln.steps.maintain.diff import Diff
from imagekiln.steps.maintain.forget import ForgetResult
from imagekiln.steps.maintain.gc import GcResult
from imagekiln.steps.maintain.reproduce import ReproduceResult
from imagekiln.steps.maintain.retry import RetryResult
from imagekiln.steps.maintain.run_list import RunOverview
from imagekiln.steps.maintain.verify import VerifyResult
from imagekiln.steps.plan.estimate import Estimate
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.rewrite.step import RewriteResult
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.workflows.client.schedules import ScheduleStatus
from imagekiln.workflows.client.status import WorkflowStatus

__all__ = [
    "Dataset",
    "Diff",
    "Estimate",
    "ExportResult",
    "ForgetResult",
    "GcResult",
    "PlanResult",
    "Preview",
    "PushResult",
    "ReproduceResult",
    "RetryResult",
    "RewriteResult",
    "RunOverview",
    "RunResult",
    "ScheduleStatus",
    "ShardStats",
    "Summary",
    "TuningResult",
    "VerifyResult",
    "WorkflowStatus",
]
