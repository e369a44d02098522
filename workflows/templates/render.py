"""What `render` prints: a job's template, and what runs it, as YAML for kubectl and GitOps."""

from imagekiln.steps.job.job import Job
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.events import build_event_binding
from imagekiln.workflows.templates.workflow import build_cron_workflow, build_workflow
from imagekiln.workflows.templates.workflow_template import build_job_template
from imagekiln.workflows.templates.yaml import to_yaml_documents


def render_manifests(
    job: Job, schedules: tuple[str, ...] = (), zone: str = "UTC", *, event: bool = False
) -> str:
    """The template of the job's profile, and what runs the job.

    That is a schedule, with `event` a binding that waits for a job, or both. With neither, it is
    one workflow. Raises BadInput.
    """
    profile = load_profile(job.cluster.profile)
    manifests = [build_job_template(job, profile)]
    if schedules:
        manifests.append(build_cron_workflow(job, profile, schedules, zone))
    if event:
        manifests.append(
            build_event_binding(profile, job.cluster.namespace, rewrites=job.rewrite is not None)
        )
    if not schedules and not event:
        manifests.append(build_workflow(job, profile))
    return to_yaml_documents(manifests)
