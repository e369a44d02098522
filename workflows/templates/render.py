"""What `render` prints: a job's template, and what runs it, as YAML for kubectl and GitOps."""

from imagekiln.steps.job.job import Job
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.events import build_event_binding
from imagekiln.workflows.templates.workflow import build_cron_workflow, build_workflow
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from imagekiln.workflows.templates.yaml import to_yaml_documents


def render_manifests(
    job: Job, schedules: tuple[str, ...] = (), zone: str = "UTC", *, event: bool = False
) -> str:
    """The template of the job's profile, and the job on a schedule, or once without one.

    With `event`, the binding that waits for a job instead. Raises BadInput.
    """
    profile = load_profile(job.cluster.profile)
    namespace = job.cluster.namespace
    if event:
        runs = build_event_binding(profile, namespace)
    elif schedules:
        runs = build_cron_workflow(job, profile, schedules, zone)
    else:
        runs = build_workflow(job, profile)
    return to_yaml_documents([build_workflow_template(profile, namespace), runs])
