"""Shards beyond what one workflow holds: further workflows of the same template, made and awaited by the first."""

from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import Profile, Retries
from imagekiln.workflows.templates.parameters import (
    RUN_ARGUMENT,
    declare_inputs,
    forward_inputs,
    task_arguments,
)
from imagekiln.workflows.templates.pod import node_affinity, pod_tolerations
from imagekiln.workflows.templates.retry import retry_strategy
from imagekiln.workflows.templates.security import resource_pod_patch
from imagekiln.workflows.templates.yaml import Unquoted, to_yaml

PARENT_LABEL = "imagekiln/part-of"  # the label of a further workflow: the name of the first
NOOP_TEMPLATE = "nothing"
SCHEDULING_PARAMETERS = (
    "parallelism",
    "priority",
    "priority_class",
)  # what the plan step says of the job, for each further workflow
MAX_PODS = 2000  # in one workflow, which then fits in its object without a database


def child_workflow_templates(profile: Profile) -> list[m.Template]:
    """The template that counts the workflows, the one that makes one, and their exit handler, which does nothing."""
    # The first workflow's own handler reports, and names a run that only the plan step knows.
    nothing = m.Template(name=NOOP_TEMPLATE, suspend=m.SuspendTemplate(duration="0"))
    return [_children_template(), _child_template(profile), nothing]


def _children_template() -> m.Template:
    """Further workflows, one after the other: each has as many pods at once as the job asks for."""
    task = m.DAGTask(
        name="workflow",
        template="further-one",
        arguments=task_arguments(
            RUN_ARGUMENT, number="{{item}}", **forward_inputs("pods", *SCHEDULING_PARAMETERS)
        ),
        with_sequence=m.Sequence(count=m.IntOrString("{{inputs.parameters.workflows}}")),
    )
    return m.Template(
        name="further",
        inputs=declare_inputs("run", "pods", "workflows", *SCHEDULING_PARAMETERS),
        parallelism=1,
        dag=m.DAGTemplate(fail_fast=False, tasks=[task]),
    )


def _child_template(profile: Profile) -> m.Template:
    """A workflow of this same template that makes up to 2,000 of the shards. Made again, it is the same one."""
    resource = m.ResourceTemplate(
        action="apply",  # a pod that is retried finds the workflow that it made
        set_owner_reference=True,
        success_condition="status.phase == Succeeded",
        failure_condition="status.phase in (Failed, Error)",
        manifest=to_yaml(_workflow(profile)),
    )
    return m.Template(
        name="further-one",
        inputs=declare_inputs("run", "number", "pods", *SCHEDULING_PARAMETERS),
        resource=resource,
        service_account_name="imagekiln-further",
        volumes=[m.Volume(name="tmp", empty_dir=m.EmptyDirVolumeSource())],
        node_selector=profile.steps.node_selector or None,
        affinity=node_affinity(profile.steps),
        tolerations=pod_tolerations(profile.steps),
        retry_strategy=retry_strategy(Retries(limit=profile.retries.limit)),
        pod_spec_patch=to_yaml(resource_pod_patch()),
    )


def _workflow(profile: Profile) -> dict[str, object]:
    """The object to make. Argo fills it in as text: user's texts by toJson, which escapes and quotes them."""
    first = f"sprig.mul(inputs.parameters.number, {MAX_PODS})"
    parameters = {
        "run": Unquoted("{{=toJson(inputs.parameters.run)}}"),
        "first": f"{{{{={first}}}}}",
        "count": f"{{{{=sprig.min({MAX_PODS}, sprig.sub(inputs.parameters.pods, {first}))}}}}",
        "gpu-image": Unquoted("{{=toJson(workflow.parameters['gpu-image'])}}"),
    }
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "name": "{{workflow.name}}-{{inputs.parameters.number}}",
            "labels": {PARENT_LABEL: "{{workflow.name}}"},
        },
        "spec": {
            "workflowTemplateRef": {"name": f"imagekiln-{profile.name}"},
            "entrypoint": "shards",
            "onExit": NOOP_TEMPLATE,
            "parallelism": Unquoted("{{inputs.parameters.parallelism}}"),
            "priority": Unquoted("{{inputs.parameters.priority}}"),
            "podPriorityClassName": Unquoted("{{=toJson(inputs.parameters.priority_class)}}"),
            "arguments": {
                "parameters": [{"name": name, "value": value} for name, value in parameters.items()]
            },
        },
    }
