"""What starts a job when somebody posts it to Argo's server."""

from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.workflow import API_VERSION
from imagekiln.workflows.templates.workflow_template import (
    WORKFLOW_PARAMETERS,
    as_object,
    template_labels,
    template_name,
)


def build_event_binding(
    profile: Profile, namespace: str, *, rewrites: bool = False
) -> dict[str, object]:
    """The binding that starts a run of a job posted to /api/v1/events/NAMESPACE/imagekiln-PROFILE.

    The body is JSON: job (an object, since Argo would hand on a text of several lines as one line)
    or job-uri, and optionally run-id, logical-date, timezone, settings (a list, for the same
    reason) and retry. With `rewrites`, jobs are posted that rewrite their prompts, to an address
    with -rewrite. With `request`, an id of the sender's, a body that comes twice starts one
    workflow.
    """
    name = template_name(profile, rewrites=rewrites)
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
