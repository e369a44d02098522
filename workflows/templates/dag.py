"""The DAGs of a workflow: shards in groups, and in child workflows beyond what one holds.

Only integers fan out, and shards output nothing: a workflow of 2,000 shards fits in its object
without a database.
"""

from collections.abc import Sequence
from itertools import pairwise

from hera.workflows import DAG, Container, Parameter, Resource, Task, TaskResult
from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import GpuSharing
from imagekiln.workflows.templates.child_workflows import SCHEDULING_PARAMETERS
from imagekiln.workflows.templates.pod import LABELS, declare_inputs, forward_inputs

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
    before_plan: Sequence[Task],
    plan_step: Container,
    fetch_step: Container | None,
    shards: DAG,
    children: DAG,
    aggregate_step: Container,
    export_step: Container,
) -> DAG:
    """Plan, generate here and in child workflows, aggregate, export.

        (rewrite) -> plan -> (fetch) -> canary -> generate, generate-further -> aggregate -> export

    `rewrite` is a task of `before_plan`, if prompts are rewritten first. `fetch` is there if one
    pod fills a cache of models for all. `canary` and `export` are skipped unless the job asks for
    them. If the canary's images are not as the job asks, the workflow ends with its sentence.
    """
    plan = Task(name="plan", template=plan_step)
    for earlier, later in pairwise([*before_plan, plan]):
        earlier.next(later, on=TaskResult.succeeded | TaskResult.skipped)
    run = plan.get_parameter("run")
    before = [plan]
    if fetch_step is not None:
        fetch = Task(name="fetch", template=fetch_step, arguments=[run])
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


def rewrite_tasks(fetch_step: Container | None, rewrite_step: Container) -> list[Task]:
    """Return the tasks before planning, in order: `fetch_step` fills a cache, if there is one.

    A workflow that retries a run has its plan, and rewrites nothing.
    """
    steps = [rewrite_step] if fetch_step is None else [fetch_step, rewrite_step]
    return [Task(name=str(step.name), template=step, when=IS_NO_RETRY) for step in steps]


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
        synchronization=gpu_lock(sharing),
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


def gpu_lock(sharing: GpuSharing) -> m.Synchronization | None:
    """Lock the DAGs of GPU pods: a lock of the workflow would keep its own children waiting."""
    if sharing.mutex is None:
        return None
    mutex = m.Mutex(name=sharing.mutex, namespace=sharing.namespace)
    return m.Synchronization(mutexes=[mutex])


def _outputs(task: Task, *names: str) -> Sequence[Parameter]:
    return [task.get_parameter(name) for name in names]


def _sequence(count: str, start: str | None = None) -> m.Sequence:
    # Hera has no class of its own for a sequence.
    first = None if start is None else m.IntOrString(start)
    return m.Sequence(start=first, count=m.IntOrString(count))
