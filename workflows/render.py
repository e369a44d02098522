"""What `render` prints: a job's template, and what runs it, as YAML that kubectl and GitOps take as it is."""

from imagekiln.steps.job import Job
from imagekiln.workflows import events, gpu_profiles, manifest, submission, templates


def render_manifests(job: Job, schedules: tuple[str, ...] = (), zone: str = "UTC", *, event: bool = False) -> str:
    """The template of the job's profile with the job on a schedule, where there is one, or else once.

    With `event`, what waits for a job instead. Raises BadInput where the job or its profile is not as it must be.
    """
    profile, namespace = gpu_profiles.load_profile(job.cluster.profile), job.cluster.namespace
    if event:
        runs = events.build_event_binding(profile, namespace)
    elif schedules:
        runs = submission.build_cron_workflow(job, profile, schedules, zone)
    else:
        runs = submission.build_workflow(job, profile)
    return manifest.to_yaml_documents([templates.build_workflow_template(profile, namespace), runs])
