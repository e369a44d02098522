"""The job that the client's tests submit, and workflows that Argo made of it."""

from datetime import datetime
from typing import cast

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.workflows.client.schedules import create
from imagekiln.workflows.objects import Json
from tests.workflows.memory import Memory

NAMESPACE = "images"
CRON_WORKFLOW = "imagekiln-postcards"


def postcards(**changes: object) -> Job:
    """The job, with changes to its settings."""
    values: dict[str, object] = {
        "name": "postcards",
        "prompts": "s3://prompts/*.parquet",
        "output": "s3://datasets",
        "model": {"id": "bundled:shapes"},
        "cluster": {"namespace": NAMESPACE, "profile": "gpu"},
    }
    return validate_job(values | changes)


def scheduled_workflow(argo: Memory, date: str, phase: str = "Failed") -> str:
    """A workflow that Argo made of the job's schedule at a date; its name."""
    create(postcards(), ("30 1 * * *",), argo=argo)
    spec = argo.spec(CRON_WORKFLOW, kind="CronWorkflow")
    labels = cast("dict[str, dict[str, str]]", spec["workflowMetadata"])["labels"]
    name = f"{CRON_WORKFLOW}-{datetime.fromisoformat(date).timestamp():.0f}"
    metadata: Json = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": labels | {"workflows.argoproj.io/cron-workflow": CRON_WORKFLOW},
        "annotations": {"workflows.argoproj.io/scheduled-time": date},
    }
    argo.create({"kind": "Workflow", "metadata": metadata, "spec": spec["workflowSpec"]})
    argo.end(name, phase)
    return name


def child_workflow(argo: Memory, parent: str, number: int, phase: str) -> str:
    """A child workflow that a parent has created; its name."""
    name = f"{parent}-{number}"
    labels = {"imagekiln.dev/part-of": parent}
    metadata: Json = {"name": name, "namespace": NAMESPACE, "labels": labels}
    argo.create({"kind": "Workflow", "metadata": metadata, "spec": {}})
    argo.end(name, phase)
    return name
