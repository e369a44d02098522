"""WorkflowTemplate of a profile: registered once, run many times, also from Argo's form."""

import hashlib
from typing import cast

from hera.workflows import Container, Parameter, WorkflowTemplate
from hera.workflows import models as m
from hera.workflows.protocol import Templatable
from pydantic import BaseModel

from imagekiln.steps.job.job import Job
from imagekiln.workflows.objects import Json, get_texts
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates import steps
from imagekiln.workflows.templates.dag import (
    child_workflow_template,
    children_dag,
    finish_dag,
    group_dag,
    main_dag,
    noop_template,
    shards_dag,
)
from imagekiln.workflows.templates.pod import (
    CPU_IMAGE_PARAMETER,
    GPU_IMAGE_PARAMETER,
    node_affinity,
    template_defaults,
)
from imagekiln.workflows.templates.security import every_pod_patch, pod_security_context
from imagekiln.workflows.templates.yaml import to_yaml

WORKFLOW_PARAMETERS = {
    "job": "The job, as YAML. Or leave it empty and give job-uri.",
    "job-uri": "Where the job file is, such as s3://jobs/postcards.yaml.",
    "run-id": "The run's folder. Empty: by the date, or by the job's settings and input.",
    "logical-date": "The batch's date, such as 2026-11-21. "
    "Fills {date} in the paths in `prompts`, and names the run.",
    "timezone": "The time zone of {date}, such as Europe/Berlin.",
    "settings": "Overrides of job settings, one KEY=VALUE per line.",
    "retry": "true: make only the images that are failed, blank or missing in the job's run.",
}
# Not among the parameters that an event may set.
IMAGE_PARAMETERS = {
    CPU_IMAGE_PARAMETER: "The image of plan and aggregate in this run. Empty: the template's.",
    GPU_IMAGE_PARAMETER: "The image of generate in this run. Empty: the template's.",
}
TTL_DAYS = 7
DAY_SECONDS = 86400
TITLE_ANNOTATION = "workflows.argoproj.io/title"  # shown in the UI
DESCRIPTION_ANNOTATION = "workflows.argoproj.io/description"
DIGEST_ANNOTATION = "imagekiln.dev/digest"
REWRITE_SUFFIX = "-rewrite"


def template_name(profile: Profile, *, rewrites: bool = False) -> str:
    """Return the name of the profile's template, or of the one that rewrites prompts."""
    return f"imagekiln-{profile.name}{REWRITE_SUFFIX if rewrites else ''}"


def job_template_name(job: Job, profile: Profile) -> str:
    """Return the name of the template that a job runs with."""
    return template_name(profile, rewrites=job.rewrite is not None)


def build_job_template(job: Job, profile: Profile) -> dict[str, object]:
    """Build the template that a job runs with, in its namespace."""
    return build_workflow_template(profile, job.cluster.namespace, rewrites=job.rewrite is not None)


def template_labels(profile: Profile) -> dict[str, str]:
    """Return the labels that identify our objects."""
    return {"app.kubernetes.io/part-of": "imagekiln", "imagekiln.dev/profile": profile.name}


def build_workflow_template(
    profile: Profile,
    namespace: str,
    *,
    rewrites: bool = False,
) -> dict[str, object]:
    """Build the template as a Kubernetes object. Its digest identifies profile and version.

    With `rewrites`, it is the template for jobs whose prompts are rewritten before planning.
    """
    template = _workflow_template(profile, namespace, rewrites=rewrites).build()
    spec = cast("m.WorkflowSpec", template.spec)
    for part in spec.templates or []:
        if part.dag is not None:
            part.fail_fast = None  # Hera also writes a DAG's fail_fast on its template

    text = spec.model_dump_json(exclude_none=True)
    digest = {DIGEST_ANNOTATION: hashlib.sha256(text.encode()).hexdigest()[:12]}
    template.metadata.annotations = (template.metadata.annotations or {}) | digest
    return as_object(template)


def template_digest(template: Json) -> str:
    """Return the digest in the template's annotation; empty if Imagekiln did not render it."""
    annotations = get_texts(template, "metadata", "annotations")
    return annotations.get(DIGEST_ANNOTATION, "")


def as_object(model: BaseModel) -> dict[str, object]:
    """Convert a Hera model to plain values for Kubernetes."""
    return cast(
        "dict[str, object]", model.model_dump(mode="json", by_alias=True, exclude_none=True)
    )


def _workflow_template(profile: Profile, namespace: str, *, rewrites: bool) -> WorkflowTemplate:
    name = template_name(profile, rewrites=rewrites)
    order = f"{'Rewrite, plan' if rewrites else 'Plan'}, generate, aggregate, export"
    return WorkflowTemplate(
        name=name,
        namespace=namespace,
        labels=template_labels(profile),
        annotations={
            TITLE_ANNOTATION: f"Imagekiln: {profile.name}",
            DESCRIPTION_ANNOTATION: f"{profile.description}. {order}.",
        },
        entrypoint="main",
        on_exit="finish",
        arguments=[
            Parameter(name=parameter, value="", description=text)
            for parameter, text in (WORKFLOW_PARAMETERS | IMAGE_PARAMETERS).items()
        ],
        service_account_name="imagekiln",
        affinity=node_affinity(profile.steps),
        security_context=pod_security_context(),
        pod_spec_patch=to_yaml(every_pod_patch()),
        template_defaults=template_defaults(profile),
        parallelism=profile.parallelism,
        active_deadline_seconds=round(profile.days * DAY_SECONDS),
        workflow_metadata=m.WorkflowMetadata(labels=template_labels(profile)),
        pod_metadata=m.Metadata(labels={"app.kubernetes.io/part-of": "imagekiln"}),
        pod_gc=m.PodGC(strategy="OnPodSuccess"),  # failed pods stay, for their logs
        ttl_strategy=m.TTLStrategy(seconds_after_completion=TTL_DAYS * DAY_SECONDS),
        archive_logs=profile.archive_logs,
        pod_disruption_budget=_disruption_budget(profile),
        templates=_templates(profile, name, rewrites=rewrites),
    )


def _disruption_budget(profile: Profile) -> m.PodDisruptionBudgetSpec | None:
    if not profile.disruption_budget:
        return None
    # More than the number of pods, so that no node is drained while a pod runs on it.
    return m.PodDisruptionBudgetSpec(min_available=m.IntOrString(9999))


def _templates(profile: Profile, name: str, *, rewrites: bool) -> list[m.Template | Templatable]:
    """Build the DAGs, the entry point first, and then the steps."""
    plan = steps.plan_step(profile)
    generate = steps.generate_step(profile)
    aggregate = steps.aggregate_step(profile)
    export = steps.export_step(profile)
    has_claim = profile.cache is not None and profile.cache.claim is not None
    fetch = [steps.fetch_step(profile)] if has_claim else []
    before_plan: list[Container] = []
    if rewrites and has_claim:
        before_plan.append(steps.fetch_language_model_step(profile))
    if rewrites:
        before_plan.append(steps.rewrite_step(profile))
    finish = [steps.report_step(profile)]
    if profile.report_artifact:
        finish.append(steps.publish_step(profile))

    group = group_dag(generate)
    shards = shards_dag(group, profile.sharing)
    child = child_workflow_template(profile, name)
    children = children_dag(child)
    return [
        main_dag(before_plan, plan, fetch, shards, children, aggregate, export),
        shards,
        group,
        children,
        child,
        noop_template(),
        plan,
        generate,
        aggregate,
        export,
        finish_dag(finish),
        *finish,
        *fetch,
        *reversed(before_plan),
    ]
