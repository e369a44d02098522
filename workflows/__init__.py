"""What Argo runs, the client of a cluster, and the command line.

From Python, a job is submitted and looked after by the functions named here; they are loaded when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagekiln.steps.job.job import Job
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.client.client import (
        apply,
        get_status,
        list_workflows,
        resubmit,
        result,
        retry,
        stop,
        submit,
        wait,
        watch,
    )
    from imagekiln.workflows.client.connect import connect
    from imagekiln.workflows.client.logs import logs
    from imagekiln.workflows.client.schedules import backfill, resume, schedule, suspend
    from imagekiln.workflows.client.status import WorkflowStatus

_EXPORTS_BY_MODULE = {
    "imagekiln.steps.job.job": ("Job",),
    "imagekiln.steps.job.reader": ("read_job",),
    "imagekiln.workflows.client.connect": ("connect",),
    "imagekiln.workflows.client.client": (
        "apply", "get_status", "list_workflows", "resubmit", "result", "retry", "stop", "submit", "wait", "watch",
    ),
    "imagekiln.workflows.client.logs": ("logs",),
    "imagekiln.workflows.client.schedules": ("backfill", "resume", "schedule", "suspend"),
    "imagekiln.workflows.client.status": ("WorkflowStatus",),
}  # fmt: skip
_MODULE_BY_EXPORT = {name: home for home, names in _EXPORTS_BY_MODULE.items() for name in names}

__all__ = [
    "Job", "WorkflowStatus", "apply", "backfill", "connect", "get_status", "list_workflows", "logs", "read_job",
    "resubmit", "result", "resume", "retry", "schedule", "stop", "submit", "suspend", "wait", "watch",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_EXPORT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_BY_EXPORT[name]), name)
