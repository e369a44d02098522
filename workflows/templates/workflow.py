"""A job as Kubernetes objects that run it: once, or on a schedule."""

import hashlib
import json

import yaml
from hera.workflows import models as m

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import DATE_PLACEHOLDER
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.facts import is_hub_id
from imagekiln.steps.storage.uri import BUNDLED_PREFIX, is_remote_uri
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.cron import check_cron
from imagekiln.workflows.templates.workflow_template import as_object, template_name

API_VERSION = "argoproj.io/v1alpha1"
JOB_LABEL = "imagekiln/job"  # the label that says of which job a workflow is
COMMON_LABELS = {"app.kubernetes.io/part-of": "imagekiln"}


def job_parameter(job: Job) -> str:
    """The job as the text of a parameter: YAML, without a sign that Argo would take for a variable."""
    values = job.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(values, sort_keys=False, width=2**31)
    if "{{" not in text and "}}" not in text:
        return text
    # JSON is YAML too. Written one to a line, its own braces never meet; those inside texts are escaped.
    return json.dumps(values, indent=1).replace("{{", "{\\u007b").replace("}}", "}\\u007d")


def workflow_arguments(job: Job, **more: str) -> m.Arguments:
    """The parameters of a run of the job: only those that differ from the template's."""
    values = {
        "job": job_parameter(job),
        "cpu-image": job.cluster.cpu_image,
        "gpu-image": job.cluster.gpu_image,
        **more,
    }
    return m.Arguments(
        parameters=[m.Parameter(name=name, value=value) for name, value in values.items() if value]
    )


def build_workflow(
    job: Job, profile: Profile, date: str = "", timezone: str = "", retry: int = 0
) -> dict[str, object]:
    """The workflow that runs the job. Its name follows from the job, so that applying it twice runs it once.

    With `retry`, it is the first, second... that makes the next round of the job's run.
    """
    require_reachable_paths(job)
    more = {"logical-date": date, "timezone": timezone} if date else {}
    digest = hashlib.sha256(json.dumps([job.model_dump(mode="json"), more]).encode()).hexdigest()[
        :10
    ]
    made = m.Workflow(
        api_version=API_VERSION,
        kind="Workflow",
        metadata=m.ObjectMeta(
            name=f"{job.name}-{digest}" + (f"-r{retry}" if retry else ""),
            namespace=job.cluster.namespace,
            labels=COMMON_LABELS | {JOB_LABEL: job.name},
            annotations={
                "workflows.argoproj.io/title": " ".join(
                    filter(None, (job.name, date, "retry" if retry else ""))
                )
            },
        ),
        spec=_workflow_spec(
            job, profile, workflow_arguments(job, **more, retry="true" if retry else "")
        ),
    )
    return as_object(made)


def _workflow_spec(job: Job, profile: Profile, given: m.Arguments) -> m.WorkflowSpec:
    return m.WorkflowSpec(
        workflow_template_ref=m.WorkflowTemplateRef(name=template_name(profile)),
        arguments=given,
        parallelism=job.cluster.parallelism,
        priority=job.cluster.priority or None,
        pod_priority_class_name=job.cluster.priority_class,
    )


def cron_workflow_name(job: Job) -> str:
    """What the job's schedule is called."""
    return f"imagekiln-{job.name}"


def build_cron_workflow(
    job: Job, profile: Profile, schedules: tuple[str, ...], zone: str
) -> dict[str, object]:
    """The job on a schedule. A firing's date names its run: one that comes twice, or late, makes nothing twice."""
    require_reachable_paths(job)
    for each in schedules:
        check_cron(each)
    if job.run_id:
        raise BadInput(
            f"run_id is {job.run_id!r}, of every firing, so that only the first makes anything. Leave it out."
        )
    given = workflow_arguments(job, timezone=zone)
    given.parameters = [
        *(given.parameters or []),
        m.Parameter(name="logical-date", value="{{workflow.scheduledTime}}"),
    ]
    labels = COMMON_LABELS | {JOB_LABEL: job.name}
    made = m.CronWorkflow(
        api_version=API_VERSION,
        kind="CronWorkflow",
        metadata=m.ObjectMeta(
            name=cron_workflow_name(job),
            namespace=job.cluster.namespace,
            labels=labels,
            annotations={"workflows.argoproj.io/title": f"{job.name}, scheduled"},
        ),
        spec=m.CronWorkflowSpec(
            schedules=list(schedules),
            timezone=zone,
            concurrency_policy=_concurrency_policy(job),
            starting_deadline_seconds=6 * 3600,  # how late a missed firing is caught up with
            successful_jobs_history_limit=7,
            failed_jobs_history_limit=7,
            workflow_metadata=m.ObjectMeta(labels=labels),
            workflow_spec=_workflow_spec(job, profile, given),
        ),
    )
    return as_object(made)


def _concurrency_policy(job: Job) -> str:
    """Whether firings overlap. Each is a run of its own; `parallelism` and quotas share the GPUs."""
    # Two that look for what is new in the same table would both make it; the next one finds what this one would have.
    return (
        "Forbid"
        if job.skip_existing and not any(map(DATE_PLACEHOLDER.search, job.prompt_patterns))
        else "Allow"
    )


def require_reachable_paths(job: Job) -> None:
    """Raise BadInput where the job names a place on this machine, which no pod can read."""
    tuning = () if job.batch.tuning is None else (job.batch.tuning,)
    places = {"prompts": job.prompt_patterns, "output": (job.output,), "batch.tuning": tuning}
    for key, names in places.items():
        for name in names:
            if not is_remote_uri(name) and not name.startswith(BUNDLED_PREFIX):
                raise BadInput(
                    f"{key} is {name!r}, a place on this machine. Write a URI, such as s3://bucket/folder."
                )
    if not (is_hub_id(job.model.id) or job.model.id.startswith((BUNDLED_PREFIX, "/"))):
        raise BadInput(
            f"model.id is {job.model.id!r}, a folder of this machine. Write a hub id or bundled:shapes."
        )
