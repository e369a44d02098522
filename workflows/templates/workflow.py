"""Kubernetes objects that run a job: once, on a schedule, or when it is posted."""

import hashlib
import json

import yaml
from hera.workflows import CronWorkflow, Workflow
from hera.workflows import models as m

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import moment_in_utc, needs_date
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptList
from imagekiln.steps.storage.uri import BUNDLED_PREFIX, is_remote_uri
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.cron import check_cron
from imagekiln.workflows.templates.pod import CPU_IMAGE_PARAMETER, GPU_IMAGE_PARAMETER
from imagekiln.workflows.templates.workflow_template import (
    TITLE_ANNOTATION,
    WORKFLOW_PARAMETERS,
    as_object,
    build_job_template,
    job_template_name,
    template_labels,
    template_name,
)
from imagekiln.workflows.templates.yaml import to_yaml_documents

API_VERSION = "argoproj.io/v1alpha1"
JOB_LABEL = "imagekiln.dev/job"  # on a workflow: the name of its job
COMMON_LABELS = {"app.kubernetes.io/part-of": "imagekiln"}
# As base64, the job is a variable of a pod, and with the rest of the template one of Argo's
# container. Linux starts no process with a variable of more than 128 KiB.
MAX_JOB_BYTES = 80_000


def job_parameter(job: Job) -> str:
    """Serialize the job as a parameter: YAML without anything that Argo takes for a variable.

    Raises BadInput if no pod could be started with it.
    """
    if isinstance(job.prompts, PromptList):
        raise BadInput(
            "prompts.texts: no prompt travels in a workflow. Write them to a file of the output's "
            "store, as `imagekiln submit` does."
        )
    values = job.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(values, sort_keys=False, width=2**31)
    if "{{" in text or "}}" in text:
        # JSON is YAML too. With one value per line, its braces never meet. Those in strings are
        # escaped.
        text = json.dumps(values, indent=1).replace("{{", "{\\u007b").replace("}}", "}\\u007d")
    if len(text.encode()) > MAX_JOB_BYTES:
        raise BadInput(
            f"job {job.name}: has {len(text.encode()):,} bytes, and no pod starts with more than "
            f"{MAX_JOB_BYTES:,}. Move what is long into files: choices of templates into "
            "`prompts.wildcards`, values of a sweep into columns of the table."
        )
    return text


def workflow_arguments(job: Job, **more: str) -> dict[str, str]:
    """Return the parameters of a run of the job that differ from the template's."""
    values = {
        "job": job_parameter(job),
        CPU_IMAGE_PARAMETER: job.cluster.cpu_image or "",
        GPU_IMAGE_PARAMETER: job.cluster.gpu_image or "",
        **more,
    }
    return {name: value for name, value in values.items() if value}


def build_workflow(
    job: Job, profile: Profile, date: str = "", timezone: str = "", retry: int = 0
) -> dict[str, object]:
    """Build the workflow that runs the job.

    Its name follows from the job, so applying it twice runs it once. With `retry`, it is the first,
    second... retry of the job's run.
    """
    require_reachable_paths(job)
    dates = {"logical-date": date, "timezone": timezone} if date else {}
    suffix = f"-r{retry}" if retry else ""
    title = " ".join(filter(None, (job.name, date, "retry" if retry else "")))

    workflow = Workflow(
        name=f"{job.name}-{_work_digest(job, dates)}{suffix}",
        namespace=job.cluster.namespace,
        labels=_labels(job),
        annotations={TITLE_ANNOTATION: title},
        workflow_template_ref=m.WorkflowTemplateRef(name=job_template_name(job, profile)),
        arguments=workflow_arguments(job, **dates, retry="true" if retry else ""),
        parallelism=job.cluster.parallelism,
        pod_priority_class_name=job.cluster.priority_class,
    )
    return as_object(workflow.build())


def _work_digest(job: Job, dates: dict[str, str]) -> str:
    """Hash a job and the time that it runs for, independent of their notation."""
    if dates:
        dates = dates | {"logical-date": moment_in_utc(dates["logical-date"], dates["timezone"])}
    text = json.dumps([job.model_dump(mode="json"), dates])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def cron_workflow_name(job: Job) -> str:
    """Return the name of the job's schedule."""
    return f"imagekiln-{job.name}"


def build_cron_workflow(
    job: Job, profile: Profile, schedules: tuple[str, ...], zone: str
) -> dict[str, object]:
    """Build the CronWorkflow of the job.

    The scheduled time names the run, so a duplicate or late start makes no image twice.
    """
    require_reachable_paths(job)
    for schedule in schedules:
        check_cron(schedule)
    if job.run_id:
        raise BadInput(
            f"run_id is {job.run_id!r} for every firing, so that only the first would make images. "
            "Leave it out."
        )
    date = {"logical-date": "{{workflow.scheduledTime}}"}
    cron_workflow = CronWorkflow(
        name=cron_workflow_name(job),
        namespace=job.cluster.namespace,
        labels=_labels(job),
        annotations={TITLE_ANNOTATION: f"{job.name}, scheduled"},
        schedules=list(schedules),
        timezone=zone,
        # A skipped run loses nothing, since the next one finds the same prompts.
        concurrency_policy="Forbid" if shares_new_rows(job) else "Allow",
        starting_deadline_seconds=6 * 3600,  # maximum delay of a missed run
        successful_jobs_history_limit=7,
        failed_jobs_history_limit=7,
        workflow_template_ref=m.WorkflowTemplateRef(name=job_template_name(job, profile)),
        arguments=workflow_arguments(job, timezone=zone) | date,
        parallelism=job.cluster.parallelism,
        pod_priority_class_name=job.cluster.priority_class,
    )
    model = cron_workflow.build()
    # Hera's workflow_metadata belongs to the workflow's spec; this is the schedule's.
    model.spec.workflow_metadata = m.ObjectMeta(labels=_labels(job))
    return as_object(model)


def _labels(job: Job) -> dict[str, str]:
    return COMMON_LABELS | {JOB_LABEL: job.name}


def shares_new_rows(job: Job) -> bool:
    """Return whether concurrent runs of the job would both generate the new rows of one table."""
    return job.skip_existing and not needs_date(job)


def require_reachable_paths(job: Job) -> None:
    """Raise BadInput if a pod would read or write a path of this machine."""
    paths = [("prompts", place) for place in job.prompt_patterns]
    paths += [("output", job.output), ("batch.tuning", job.batch.tuning or BUNDLED_PREFIX)]
    paths += [("export", copy.to) for copy in job.export]
    for setting, place in paths:
        if not is_remote_uri(place) and not place.startswith(BUNDLED_PREFIX):
            raise BadInput(
                f"{setting} is {place!r}, a path on this machine. "
                "Write a URI, such as s3://bucket/folder."
            )


def render_manifests(
    job: Job, schedules: tuple[str, ...] = (), zone: str = "UTC", *, event: bool = False
) -> str:
    """Render the template of the job's profile, and the object that runs the job, as YAML.

    This object is a CronWorkflow if there are schedules, with `event` a binding for posted jobs, or
    both. With neither, it is one workflow. Raises BadInput.
    """
    profile = load_profile(job.cluster.profile)
    manifests = [build_job_template(job, profile)]
    if schedules:
        manifests.append(build_cron_workflow(job, profile, schedules, zone))
    if event:
        manifests.append(
            build_event_binding(profile, job.cluster.namespace, job_template_name(job, profile))
        )
    if len(manifests) == 1:
        manifests.append(build_workflow(job, profile))
    return to_yaml_documents(manifests)


def build_event_binding(profile: Profile, namespace: str, template: str = "") -> dict[str, object]:
    """Build the binding that starts a job posted to /api/v1/events/NAMESPACE/imagekiln-PROFILE.

    The body is JSON: job (an object, since Argo would pass on a string without its line breaks) or
    job-uri, and optionally run-id, logical-date, timezone, settings (a list, for the same reason)
    and retry. Jobs that rewrite their prompts are posted to the name of their own template. With
    `request`, an id of the sender's, a duplicate body starts only one workflow.
    """
    name = template or template_name(profile)
    parameters = [
        {"name": key, "valueFrom": {"event": f'payload["{key}"] ?? ""'}}
        for key in WORKFLOW_PARAMETERS
    ]
    workflow_name = f'payload["request"] == nil ? "" : "{name}-" + payload["request"]'
    return {
        "apiVersion": API_VERSION,
        "kind": "WorkflowEventBinding",
        "metadata": {"name": name, "namespace": namespace, "labels": template_labels(profile)},
        "spec": {
            "event": {"selector": f'discriminator == "{name}"'},
            "submit": {
                "arguments": {"parameters": parameters},
                "metadata": {"name": workflow_name},
                "workflowTemplateRef": {"name": name},
            },
        },
    }
