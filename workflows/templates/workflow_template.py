"""The WorkflowTemplate of a profile: registered once, run many times. Argo's own form is enough to start a run."""

import hashlib
from typing import cast

from hera.workflows import models as m

from imagekiln.workflows.objects import Json, object_metadata
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.dag import dag_templates
from imagekiln.workflows.templates.security import pod_security_context
from imagekiln.workflows.templates.steps import step_templates

WORKFLOW_PARAMETERS = {
    "job": "The job, as YAML. Or leave it empty and give job-uri.",
    "job-uri": "Where the job file is, such as s3://jobs/postcards.yaml.",
    "run-id": "The run's folder. Empty: by the date, or by the job's settings and input.",
    "logical-date": "Whose batch it is, such as 2026-11-21. Fills {date} in the prompts' places, and names the run.",
    "timezone": "The time zone of {date}, such as Europe/Berlin.",
    "settings": "Changes of the job, one KEY=VALUE a line.",
    "retry": "true: make again only what ended failed, blank or missing in the job's run.",
}
TTL_DAYS = 7
DIGEST_ANNOTATION = "imagekiln/digest"


def template_name(profile: Profile) -> str:
    """What the template is called on the cluster."""
    return f"imagekiln-{profile.name}"


def build_workflow_template(profile: Profile, namespace: str) -> dict[str, object]:
    """The template as a Kubernetes object. Its digest tells it from that of another profile or version."""
    spec = _template_spec(profile)
    made = m.WorkflowTemplate(
        api_version="argoproj.io/v1alpha1",
        kind="WorkflowTemplate",
        metadata=m.ObjectMeta(
            name=template_name(profile),
            namespace=namespace,
            labels=template_labels(profile),
            annotations={
                "workflows.argoproj.io/title": f"Imagekiln: {profile.name}",
                "workflows.argoproj.io/description": f"{profile.description}. Plan, generate, aggregate.",
                DIGEST_ANNOTATION: hashlib.sha256(
                    spec.model_dump_json(exclude_none=True).encode()
                ).hexdigest()[:12],
            },
        ),
        spec=spec,
    )
    return as_object(made)


def template_digest(template: Json) -> str:
    """What a template was made from, as its annotation says; empty where it is not ours."""
    given = cast("dict[str, str]", object_metadata(template).get("annotations") or {})
    return given.get(DIGEST_ANNOTATION, "")


def as_object(
    made: m.WorkflowTemplate | m.Workflow | m.CronWorkflow | m.WorkflowEventBinding,
) -> dict[str, object]:
    """A Hera model as the plain values that Kubernetes takes."""
    return cast("dict[str, object]", made.model_dump(mode="json", by_alias=True, exclude_none=True))


def template_labels(profile: Profile) -> dict[str, str]:
    """What our objects are found by."""
    return {"app.kubernetes.io/part-of": "imagekiln", "imagekiln/profile": profile.name}


def _template_spec(profile: Profile) -> m.WorkflowSpec:
    images = {"cpu-image": profile.steps.image, "gpu-image": profile.generate.image}
    parameters = [
        m.Parameter(name=key, value="", description=text)
        for key, text in WORKFLOW_PARAMETERS.items()
    ]
    parameters += [m.Parameter(name=key, value=image) for key, image in images.items()]
    return m.WorkflowSpec(
        entrypoint="main",
        on_exit="report",
        arguments=m.Arguments(parameters=parameters),
        service_account_name="imagekiln",
        security_context=pod_security_context(),
        parallelism=profile.parallelism,
        active_deadline_seconds=round(profile.days * 86400),
        workflow_metadata=m.WorkflowMetadata(labels=template_labels(profile)),
        pod_metadata=m.Metadata(labels={"app.kubernetes.io/part-of": "imagekiln"}),
        pod_gc=m.PodGC(strategy="OnPodSuccess"),  # failed ones stay, for their logs
        ttl_strategy=m.TTLStrategy(seconds_after_completion=TTL_DAYS * 86400),
        # More than there can be pods: a node is not drained while a shard runs on it.
        pod_disruption_budget=m.PodDisruptionBudgetSpec(min_available=m.IntOrString(9999)),
        templates=[*dag_templates(profile), *step_templates(profile)],
    )
