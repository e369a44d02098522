"""Child workflows: shards beyond what one workflow holds, which creates and awaits them."""

from dataclasses import dataclass
from math import ceil

from hera.workflows import Resource, Suspend

from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.pod import LABELS, declare_inputs, pod_tolerations
from imagekiln.workflows.templates.pod_retries import child_retry_strategy
from imagekiln.workflows.templates.security import resource_pod_patch
from imagekiln.workflows.templates.yaml import Unquoted, to_yaml

PARENT_LABEL = "imagekiln.dev/part-of"  # on a child workflow: the name of its parent
CHILD_TEMPLATE = "further-one"
NOOP_TEMPLATE = "nothing"
# What the plan step outputs of the job for each child workflow.
SCHEDULING_PARAMETERS = ("parallelism", "priority_class")
MAX_NAME_CHARS = 59  # of a parent's name in that of a child: Argo takes 63
MAX_PODS = 2000  # in one workflow, which then fits in its object without a database


@dataclass(frozen=True, slots=True)
class PodSplit:
    """The pods of a run: those of its own workflow, or else the child workflows that hold them."""

    pods: int
    pods_here: int
    child_workflows: int


def split_pods(shards: int, workers: int = 1) -> PodSplit:
    """Split the shards into pods, each of which makes one shard per worker."""
    pods = ceil(shards / workers)
    if pods <= MAX_PODS:
        return PodSplit(pods, pods_here=pods, child_workflows=0)
    return PodSplit(pods, pods_here=0, child_workflows=ceil(pods / MAX_PODS))


def noop_template() -> Suspend:
    """The exit handler of child workflows, which does nothing.

    The parent's reports, and names a run that only the plan step knows.
    """
    return Suspend(name=NOOP_TEMPLATE, duration="0")


def child_workflow_template(profile: Profile, template: str, max_pods: int = MAX_PODS) -> Resource:
    """A workflow of this same `template` that generates up to `max_pods` of the shards."""
    return Resource(
        name=CHILD_TEMPLATE,
        inputs=declare_inputs("run", "number", "pods", *SCHEDULING_PARAMETERS, *LABELS),
        action="apply",  # a pod that is retried finds the workflow that it made
        set_owner_reference=True,
        success_condition="status.phase == Succeeded",
        failure_condition="status.phase in (Failed, Error)",
        manifest=to_yaml(_workflow(template, max_pods)),
        service_account_name="imagekiln-further",
        active_deadline_seconds=round(
            profile.days * 86400
        ),  # it waits as long as a workflow may run
        node_selector=profile.steps.node_selector or None,
        tolerations=pod_tolerations(profile.steps),
        priority_class_name=profile.steps.priority_class,
        retry_strategy=child_retry_strategy(profile.retries.limit),
        pod_spec_patch=to_yaml(resource_pod_patch()),
    )


def _workflow(template: str, max_pods: int) -> dict[str, object]:
    """The manifest. Argo fills it in as text: users' texts by toJson, which escapes and quotes."""
    first = f"sprig.mul(inputs.parameters.number, {max_pods})"
    parameters = {
        "run": Unquoted("{{=toJson(inputs.parameters.run)}}"),
        "first": f"{{{{={first}}}}}",
        "count": f"{{{{=sprig.min({max_pods}, sprig.sub(inputs.parameters.pods, {first}))}}}}",
        **{name: f"{{{{inputs.parameters.{name}}}}}" for name in LABELS},
        "gpu-image": Unquoted("{{=toJson(workflow.parameters['gpu-image'])}}"),
    }
    # That of a schedule's run ends in what tells it from others: the time.
    parent = f'{{{{=sprig.trimAll("-.", sprig.trunc(-{MAX_NAME_CHARS}, workflow.name))}}}}'
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "name": f"{parent}-{{{{inputs.parameters.number}}}}",
            "labels": {PARENT_LABEL: "{{workflow.name}}"},
        },
        "spec": {
            "workflowTemplateRef": {"name": template},
            "entrypoint": "shards",
            "onExit": NOOP_TEMPLATE,
            "parallelism": Unquoted("{{inputs.parameters.parallelism}}"),
            "podPriorityClassName": Unquoted("{{=toJson(inputs.parameters.priority_class)}}"),
            "arguments": {
                "parameters": [{"name": name, "value": value} for name, value in parameters.items()]
            },
        },
    }
