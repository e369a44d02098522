"""What `render` prints: a job's template, and what runs it, as YAML that kubectl and GitOps take as it is."""

from imagekiln.steps.job import Job
from imagekiln.workflows import events, gpu_profiles, manifest, submission, templates


def render(job: Job, schedules: tuple[str, ...] = (), zone: str = "UTC", *, event: bool = False) -> str:
    """The template of the job's profile with the job on a schedule, where there is one, or else once.

    With `event`, what waits for a job instead. Raises BadInput where the job or its profile is not as it must be.
    """
    profile, namespace = gpu_profiles.load(job.cluster.profile), job.cluster.namespace
    if event:
        runs = events.event_binding(profile, namespace)
    elif schedules:
        runs = submission.cron_workflow(job, profile, schedules, zone)
    else:
        runs = submission.workflow(job, profile)
    return manifest.documents([templates.workflow_template(profile, namespace), runs])
