"""The DAGs of a workflow: shards in groups, and in child workflows beyond what one holds.

Only integers fan out, and shards output nothing: a workflow of 2,000 shards fits in its object
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
# What the plan step outputs of the job for each child workflow.
SCHEDULING_PARAMETERS = ("parallelism", "priority_class")
MAX_NAME_CHARS = 59  # of a parent's name in that of a child: Argo takes 63
MAX_PODS = 2000  # in one workflow, which then fits in its object without a database
GROUP_SHARDS = 50  # shards that one node of Argo's page unfolds to
ITEM = "{{item}}"
# Whether the first shard's images decide about the others.
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
    """Plan, generate here and in child workflows, aggregate, export.

        (rewrite) -> plan -> (fetch) -> canary -> generate, generate-further -> aggregate -> export

    `rewrite` is a step before planning, if prompts are rewritten first: a workflow that retries a
    run has its plan, and rewrites nothing. `fetch` is there if one pod fills a cache of models for
    all. `canary` and `export` are skipped unless the job asks for them. If the canary's images are
    not as the job asks, the workflow ends with its sentence.
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

    # The first pod, or none: so the others begin with the one after it.
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
    # Whatever became of the shards: aggregate finds what is missing, and fails if anything is.
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
    """Return the tasks of all shards but a canary's: in this workflow, or in child workflows."""
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
    """The exit handler, whose steps run one after another.

    Argo takes a workflow for failed whose exit handler failed. So whatever becomes of the steps,
    this DAG succeeds. Side by side, they would be more pods than a parallelism of one admits, and
    Argo's controller (4.1.2) exits if a task of the exit handler has to wait for that.
    """
    any_failure = m.ContinueOn(failed=True, error=True)
    tasks: list[Task | m.DAGTask] = []
    before: list[str] | None = None
    for step in steps:
        name = str(step.name)
        # `depends`, which Hera's >> writes, does not go with `continueOn`.
        task = Task(name=name, template=step, dependencies=before, continue_on=any_failure)
        tasks.append(task)
        before = [name]
    return DAG(name="finish", tasks=tasks)


def shards_dag(group: DAG, sharing: GpuSharing) -> DAG:
    """`count` shards from `first` on, in groups. Also the entry point of child workflows."""
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
    """The group's own shards, computed here: Argo resolves inputs and items at different times."""
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
    """Child workflows, one after the other: each has as many pods at once as the job asks for."""
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
    """The locks of a profile: the mutex on DAGs of GPU pods, the semaphore on each pod.

    A lock of the workflow would keep its own children waiting.
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
    # Hera has no class of its own for a sequence.
    first = None if start is None else m.IntOrString(start)
    return m.Sequence(start=first, count=m.IntOrString(count))


@dataclass(frozen=True, slots=True)
class PodSplit:
    """The pods of a run: those of its own workflow, or else the child workflows that hold them."""

    pods: int
    pods_here: int
    child_workflows: int


def split_pods(shards: int, workers: int = 1) -> PodSplit:
    """Split the shards into pods, each of which makes one shard per worker."""
    pods = ceil(shards / workers)
    children = 0 if pods <= MAX_PODS else ceil(pods / MAX_PODS)
    return PodSplit(pods, pods_here=0 if children else pods, child_workflows=children)


def noop_template() -> Suspend:
    """The exit handler of child workflows, which does nothing.

    The parent's reports, and names a run that only the plan step knows.
    """
    return Suspend(name=NOOP_TEMPLATE, duration="0")


def child_workflow_template(profile: Profile, template: str) -> Resource:
    """A workflow of this same `template` that generates up to `MAX_PODS` of the shards."""
    return Resource(
        name=CHILD_TEMPLATE,
        inputs=declare_inputs("run", "number", "pods", *SCHEDULING_PARAMETERS, *LABELS),
        action="apply",  # a pod that is retried finds the workflow that it made
        set_owner_reference=True,
        success_condition="status.phase == Succeeded",
        failure_condition="status.phase in (Failed, Error)",
        manifest=to_yaml(_workflow(template)),
        service_account_name="imagekiln-further",
        # It waits as long as a workflow may run.
        active_deadline_seconds=round(profile.days * 86400),
        node_selector=profile.steps.node_selector or None,
        tolerations=pod_tolerations(profile.steps),
        priority_class_name=profile.steps.priority_class,
        retry_strategy=child_retry_strategy(profile.retries.limit),
        pod_spec_patch=to_yaml(resource_pod_patch()),
    )


def _workflow(template: str) -> dict[str, object]:
    """The manifest. Argo fills it in as text: users' texts by toJson, which escapes and quotes."""
    first = f"sprig.mul(inputs.parameters.number, {MAX_PODS})"
    parameters = {
        "run": Unquoted("{{=toJson(inputs.parameters.run)}}"),
        "first": f"{{{{={first}}}}}",
        "count": f"{{{{=sprig.min({MAX_PODS}, sprig.sub(inputs.parameters.pods, {first}))}}}}",
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
