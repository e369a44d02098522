"""DAGs of a workflow: shards in groups, and in child workflows if one cannot hold all.

Only integers fan out, and shards have no outputs, so a workflow of 2,000 shards fits in its object
without a database.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from hera.workflows import DAG, Container, Parameter, Resource, Suspend, Task, TaskResult
from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import GpuSharing, Profile
from imagekiln.workflows.templates.pod import (
    LABELS,
    declare_inputs,
    forward_inputs,
    pod_tolerations,
)
from imagekiln.workflows.templates.pod_retries import child_retry_strategy
from imagekiln.workflows.templates.security import resource_pod_patch
from imagekiln.workflows.templates.yaml import Unquoted, to_yaml

PARENT_LABEL = "imagekiln.dev/part-of"  # on a child workflow: the name of its parent
CHILD_TEMPLATE = "further-one"
NOOP_TEMPLATE = "nothing"
# Outputs of the plan step from the job, for each child workflow.
SCHEDULING_PARAMETERS = ("parallelism", "priority_class")
MAX_NAME_CHARS = 59  # of a parent's name in a child's name: Argo allows 63
MAX_PODS = 2000  # in one workflow, so that it fits in its object without a database
GROUP_SHARDS = 50  # shards under one node of Argo's page
ITEM = "{{item}}"
# Whether the images of the first shard decide if the others run.
JUDGE_INPUT = Parameter(name="judge", value="false")
IS_NO_RETRY = "{{=workflow.parameters.retry != 'true'}}"
ENDED = (
    TaskResult.succeeded
    | TaskResult.failed
    | TaskResult.errored
    | TaskResult.skipped
    | TaskResult.omitted
)


def main_dag(
    steps_before_plan: Sequence[Container],
    plan_step: Container,
    fetch_steps: Sequence[Container],
    shards: DAG,
    children: DAG,
    aggregate_step: Container,
    export_step: Container,
) -> DAG:
    """Build the main DAG: plan, generate here and in child workflows, aggregate, export.

        (rewrite) -> plan -> (fetch) -> canary -> generate, generate-further -> aggregate -> export

    `rewrite` runs before planning, if the job rewrites prompts. A workflow that retries a run
    already has a plan, and does not rewrite. `fetch` exists if one pod fills a model cache for all.
    `canary` and `export` are skipped unless the job requests them. If the canary's images do not
    meet the job's limits, the workflow ends with a message.
    """
    before_plan = [
        Task(name=str(step.name), template=step, when=IS_NO_RETRY) for step in steps_before_plan
    ]
    plan = Task(name="plan", template=plan_step)
    for earlier, later in pairwise([*before_plan, plan]):
        earlier.next(later, on=TaskResult.succeeded | TaskResult.skipped)
    run = plan.get_parameter("run")
    before = [plan]
    for step in fetch_steps:
        fetch = Task(name=str(step.name), template=step, arguments=[run])
        plan >> fetch
        before.append(fetch)

    # The first pod, or none. The others start with the pod after it.
    canary_pods = plan.get_parameter("canary")
    canary = Task(
        name="canary",
        template=shards,
        arguments=[
            run,
            {"first": "0", "count": canary_pods, "judge": "true"},
            *_outputs(plan, *LABELS),
        ],
        when="{{tasks.plan.outputs.parameters.canary}} == 1",
    )
    generate = _fan_out(plan, shards, children)
    aggregate = Task(name="aggregate", template=aggregate_step, arguments=[run])

    before[-1] >> canary
    for task in generate:
        canary.next(task, on=TaskResult.succeeded | TaskResult.skipped)
    # Runs after any result of the shards, since aggregate finds and reports missing images.
    plan.next(aggregate, on=TaskResult.succeeded)
    canary.next(aggregate, on=TaskResult.succeeded | TaskResult.skipped | TaskResult.omitted)
    for task in generate:
        task.next(aggregate, on=ENDED)
    export = Task(
        name="export",
        template=export_step,
        arguments=[run],
        when="{{tasks.plan.outputs.parameters.exports}} != 0",
    )
    aggregate.next(export, on=TaskResult.succeeded)
    tasks: list[Task | m.DAGTask] = [*before_plan, *before, canary, *generate, aggregate, export]
    return DAG(name="main", fail_fast=False, tasks=tasks)


def _fan_out(plan: Task, shards: DAG, children: DAG) -> tuple[Task, Task]:
    """Return the tasks of all shards except a canary: in this workflow, or in child workflows."""
    run = plan.get_parameter("run")
    first = plan.get_parameter("canary")
    here = Task(
        name="generate",
        template=shards,
        arguments=[
            run,
            {"first": first, "count": plan.get_parameter("pods_here")},
            *_outputs(plan, *LABELS),
        ],
    )
    names = ("pods", "workflows", *SCHEDULING_PARAMETERS, *LABELS)
    further = Task(
        name="generate-further", template=children, arguments=[run, *_outputs(plan, *names)]
    )
    return here, further


def finish_dag(steps: Sequence[Container]) -> DAG:
    """Build the exit handler, whose steps run in sequence.

    Argo fails a workflow if its exit handler failed, so this DAG always succeeds. Parallel steps
    could exceed a parallelism of one, and Argo's controller (4.1.2) exits if a task of the exit
    handler has to wait for that.
    """
    any_failure = m.ContinueOn(failed=True, error=True)
    tasks: list[Task | m.DAGTask] = []
    before: list[str] | None = None
    for step in steps:
        name = str(step.name)
        # `depends`, which Hera's >> writes, cannot be combined with `continueOn`.
        task = Task(name=name, template=step, dependencies=before, continue_on=any_failure)
        tasks.append(task)
        before = [name]
    return DAG(name="finish", tasks=tasks)


def shards_dag(group: DAG, sharing: GpuSharing) -> DAG:
    """Build the DAG of `count` shards from `first` on, in groups. Also used by child workflows."""
    groups = f"sprig.div(sprig.add(inputs.parameters.count, {GROUP_SHARDS - 1}), {GROUP_SHARDS})"
    task = Task(
        name="group",
        template=group,
        arguments=[
            *forward_inputs("run"),
            Parameter(name="number", value=ITEM),
            *forward_inputs("first", "count", "judge", *LABELS),
        ],
        with_sequence=_sequence(count=f"{{{{={groups}}}}}"),
    )
    return DAG(
        name="shards",
        inputs=[*declare_inputs("run", "first", "count", *LABELS), JUDGE_INPUT],
        fail_fast=False,
        tasks=[task],
        synchronization=gpu_synchronization(sharing, mutex=True),
    )


def group_dag(generate: Container) -> DAG:
    """Build the DAG of a group, which computes its shards: Argo resolves inputs before items."""
    before = f"sprig.mul(inputs.parameters.number, {GROUP_SHARDS})"
    start = f"sprig.add(inputs.parameters.first, {before})"
    count = f"sprig.min({GROUP_SHARDS}, sprig.sub(inputs.parameters.count, {before}))"
    task = Task(
        name="shard",
        template=generate,
        arguments=[
            *forward_inputs("run"),
            Parameter(name="shard", value=ITEM),
            *forward_inputs("judge", *LABELS),
        ],
        with_sequence=_sequence(start=f"{{{{={start}}}}}", count=f"{{{{={count}}}}}"),
    )
    inputs = declare_inputs("run", "number", "first", "count", "judge", *LABELS)
    return DAG(name="group", inputs=inputs, fail_fast=False, tasks=[task])


def children_dag(child: Resource) -> DAG:
    """Build the DAG of child workflows in sequence, each with the job's parallelism."""
    task = Task(
        name="workflow",
        template=child,
        arguments=[
            *forward_inputs("run"),
            Parameter(name="number", value=ITEM),
            *forward_inputs("pods", *SCHEDULING_PARAMETERS, *LABELS),
        ],
        with_sequence=_sequence(count="{{inputs.parameters.workflows}}"),
    )
    return DAG(
        name="further",
        inputs=declare_inputs("run", "pods", "workflows", *SCHEDULING_PARAMETERS, *LABELS),
        parallelism=1,
        fail_fast=False,
        tasks=[task],
    )


def gpu_synchronization(
    sharing: GpuSharing, *, mutex: bool = False, semaphore: bool = False
) -> m.Synchronization | None:
    """Return the locks of a profile: a mutex on DAGs of GPU pods, a semaphore on each pod.

    A lock on the workflow would block its own children.
    """
    mutexes, semaphores = None, None
    if mutex and sharing.mutex is not None:
        mutexes = [m.Mutex(name=sharing.mutex, namespace=sharing.namespace)]
    if semaphore and sharing.semaphore is not None:
        source = m.ConfigMapKeySelector(name="imagekiln-gpus", key=sharing.semaphore)
        semaphores = [m.SemaphoreRef(config_map_key_ref=source, namespace=sharing.namespace)]
    if mutexes is None and semaphores is None:
        return None
    return m.Synchronization(mutexes=mutexes, semaphores=semaphores)


def _outputs(task: Task, *names: str) -> Sequence[Parameter]:
    return [task.get_parameter(name) for name in names]


def _sequence(count: str, start: str | None = None) -> m.Sequence:
    # Hera has no class for a sequence.
    first = None if start is None else m.IntOrString(start)
    return m.Sequence(start=first, count=m.IntOrString(count))


@dataclass(frozen=True, slots=True)
class PodSplit:
    """The pods of a run: in its own workflow, or in child workflows."""

    pods: int
    pods_here: int
    child_workflows: int


def split_pods(shards: int, workers: int = 1) -> PodSplit:
    """Split the shards into pods, each of which makes one shard per worker."""
    pods = ceil(shards / workers)
    children = 0 if pods <= MAX_PODS else ceil(pods / MAX_PODS)
    return PodSplit(pods, pods_here=0 if children else pods, child_workflows=children)


def noop_template() -> Suspend:
    """Build an exit handler for child workflows, which does nothing.

    The parent's exit handler reports instead, for a run that only the plan step knows.
    """
    return Suspend(name=NOOP_TEMPLATE, duration="0")


def child_workflow_template(profile: Profile, template: str) -> Resource:
    """Build a child workflow with the same `template` for up to `MAX_PODS` of the shards."""
    return Resource(
        name=CHILD_TEMPLATE,
        inputs=declare_inputs("run", "number", "pods", *SCHEDULING_PARAMETERS, *LABELS),
        action="apply",  # a retried pod finds the workflow that it created
        set_owner_reference=True,
        success_condition="status.phase == Succeeded",
        failure_condition="status.phase in (Failed, Error)",
        manifest=to_yaml(_workflow(template)),
        service_account_name="imagekiln-further",
        # The pod waits as long as a workflow may run.
        active_deadline_seconds=round(profile.days * 86400),
        node_selector=profile.steps.node_selector or None,
        tolerations=pod_tolerations(profile.steps),
        priority_class_name=profile.steps.priority_class,
        retry_strategy=child_retry_strategy(profile.retries.limit),
        pod_spec_patch=to_yaml(resource_pod_patch()),
    )


def _workflow(template: str) -> dict[str, object]:
    """Build the manifest. Argo fills in strings; toJson escapes and quotes users' strings."""
    first = f"sprig.mul(inputs.parameters.number, {MAX_PODS})"
    parameters = {
        "run": Unquoted("{{=toJson(inputs.parameters.run)}}"),
        "first": f"{{{{={first}}}}}",
        "count": f"{{{{=sprig.min({MAX_PODS}, sprig.sub(inputs.parameters.pods, {first}))}}}}",
        **{name: f"{{{{inputs.parameters.{name}}}}}" for name in LABELS},
        "gpu-image": Unquoted("{{=toJson(workflow.parameters['gpu-image'])}}"),
    }
    # The name of a scheduled run ends with its time, which makes it unique.
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
