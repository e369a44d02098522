"""A job's template, and what runs it, as YAML for kubectl and GitOps: what `render` prints."""

from hera.workflows import models as m

from imagekiln.steps.job.job import Job
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.workflow import (
    API_VERSION,
    build_cron_workflow,
    build_workflow,
)
from imagekiln.workflows.templates.workflow_template import (
    WORKFLOW_PARAMETERS,
    as_object,
    build_job_template,
    job_template_name,
    template_labels,
    template_name,
)
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
            build_event_binding(profile, job.cluster.namespace, job_template_name(job, profile))
        )
    if not schedules and not event:
        manifests.append(build_workflow(job, profile))
    return to_yaml_documents(manifests)


def build_event_binding(profile: Profile, namespace: str, template: str = "") -> dict[str, object]:
    """Build the binding that starts a job posted to /api/v1/events/NAMESPACE/imagekiln-PROFILE.

    The body is JSON: job (an object, since Argo would hand on a text of several lines as one line)
    or job-uri, and optionally run-id, logical-date, timezone, settings (a list, for the same
    reason) and retry. Jobs that rewrite their prompts are posted to the name of their own template.
    With `request`, an id of the sender's, a body that comes twice starts one workflow.
    """
    name = template or template_name(profile)
    parameters = [
        m.Parameter(name=key, value_from=m.ValueFrom(event=f'payload["{key}"] ?? ""'))
        for key in WORKFLOW_PARAMETERS
    ]
    workflow_name = f'payload["request"] == nil ? "" : "{name}-" + payload["request"]'
    submit = m.Submit(
        workflow_template_ref=m.WorkflowTemplateRef(name=name),
        metadata=m.ObjectMeta(name=workflow_name),
        arguments=m.Arguments(parameters=parameters),
    )

    # Hera has no class of its own for an event binding.
    binding = m.WorkflowEventBinding(
        api_version=API_VERSION,
        kind="WorkflowEventBinding",
        metadata=m.ObjectMeta(name=name, namespace=namespace, labels=template_labels(profile)),
        spec=m.WorkflowEventBindingSpec(
            event=m.Event(selector=f'discriminator == "{name}"'), submit=submit
        ),
    )
    return as_object(binding)
