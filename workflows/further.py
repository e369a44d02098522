"""Shards beyond what one workflow holds: further workflows of the same template, made and awaited by the first."""

from hera.workflows import models as m

from imagekiln.workflows import manifest, placing, retrying, security
from imagekiln.workflows.manifest import Unquoted
from imagekiln.workflows.passing import RUN, arguments, inputs, passed
from imagekiln.workflows.profile import Profile, Retries

PART_OF = "imagekiln/part-of"  # the label of a further workflow: the name of the first
NOTHING = "nothing"
ASKED = ("parallelism", "priority", "priority_class")  # what the plan step says of the job, for each further workflow
MOST_PODS = 2000  # in one workflow, which then fits in its object without a database


def templates(profile: Profile) -> list[m.Template]:
    """The template that counts the workflows, the one that makes one, and their exit handler, which does nothing."""
    # The first workflow's own handler reports, and names a run that only the plan step knows.
    nothing = m.Template(name=NOTHING, suspend=m.SuspendTemplate(duration="0"))
    return [_all(), _one(profile), nothing]


def _all() -> m.Template:
    """Further workflows, one after the other: each has as many pods at once as the job asks for."""
    task = m.DAGTask(
        name="workflow",
        template="further-one",
        arguments=arguments(RUN, number="{{item}}", **passed("pods", *ASKED)),
        with_sequence=m.Sequence(count=m.IntOrString("{{inputs.parameters.workflows}}")),
    )
    return m.Template(
        name="further",
        inputs=inputs("run", "pods", "workflows", *ASKED),
        parallelism=1,
        dag=m.DAGTemplate(fail_fast=False, tasks=[task]),
    )


def _one(profile: Profile) -> m.Template:
    """A workflow of this same template that makes up to 2,000 of the shards. Made again, it is the same one."""
    resource = m.ResourceTemplate(
        action="apply",  # a pod that is retried finds the workflow that it made
        set_owner_reference=True,
        success_condition="status.phase == Succeeded",
        failure_condition="status.phase in (Failed, Error)",
        manifest=manifest.to_yaml(_workflow(profile)),
    )
    return m.Template(
        name="further-one",
        inputs=inputs("run", "number", "pods", *ASKED),
        resource=resource,
        service_account_name="imagekiln-further",
        volumes=[m.Volume(name="tmp", empty_dir=m.EmptyDirVolumeSource())],
        node_selector=profile.steps.node_selector or None,
        affinity=placing.affinity(profile.steps),
        tolerations=placing.tolerations(profile.steps),
        retry_strategy=retrying.strategy(Retries(limit=profile.retries.limit)),
        pod_spec_patch=manifest.to_yaml(security.resource_containers()),
    )


def _workflow(profile: Profile) -> dict[str, object]:
    """The object to make. Argo fills it in as text: user's texts by toJson, which escapes and quotes them."""
    first = f"sprig.mul(inputs.parameters.number, {MOST_PODS})"
    parameters = {
        "run": Unquoted("{{=toJson(inputs.parameters.run)}}"),
        "first": f"{{{{={first}}}}}",
        "count": f"{{{{=sprig.min({MOST_PODS}, sprig.sub(inputs.parameters.pods, {first}))}}}}",
        "gpu-image": Unquoted("{{=toJson(workflow.parameters['gpu-image'])}}"),
    }
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "name": "{{workflow.name}}-{{inputs.parameters.number}}",
            "labels": {PART_OF: "{{workflow.name}}"},
        },
        "spec": {
            "workflowTemplateRef": {"name": f"imagekiln-{profile.name}"},
            "entrypoint": "shards",
            "onExit": NOTHING,
            "parallelism": Unquoted("{{inputs.parameters.parallelism}}"),
            "priority": Unquoted("{{inputs.parameters.priority}}"),
            "podPriorityClassName": Unquoted("{{=toJson(inputs.parameters.priority_class)}}"),
            "arguments": {"parameters": [{"name": name, "value": value} for name, value in parameters.items()]},
        },
    }
