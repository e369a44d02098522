"""How one plan becomes many pods: in groups, so that two thousand stay light, and in further workflows beyond that.

Only integers fan out, and shards give nothing back: a workflow of 2,000 shards fits in its object without a database.
"""

from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.child_workflows import (
    SCHEDULING_PARAMETERS,
    child_workflow_templates,
)
from imagekiln.workflows.templates.parameters import (
    RUN_ARGUMENT,
    declare_inputs,
    forward_inputs,
    task_arguments,
)

GROUP_SHARDS = 50  # shards that one node of Argo's page unfolds to
TASK_ENDED = "({0}.Succeeded || {0}.Failed || {0}.Errored || {0}.Skipped || {0}.Omitted)"


def dag_templates(profile: Profile) -> list[m.Template]:
    """The templates that hold no container of ours, the entry point first."""
    return [
        _main_template(profile),
        _shards_template(profile),
        _group_template(),
        *child_workflow_templates(profile),
    ]


def _main_template(profile: Profile) -> m.Template:
    """Aggregate runs whatever became of the shards: it says itself what is missing, and fails if anything is."""
    plan = "{{{{tasks.plan.outputs.parameters.{}}}}}"
    run = m.Parameter(name="run", value=plan.format("run"))
    filled = "fetch" if profile.cache and profile.cache.claim else "plan"
    tasks = [m.DAGTask(name="plan", template="plan")]
    if filled == "fetch":
        tasks.append(
            m.DAGTask(
                name="fetch",
                template="fetch",
                depends="plan",
                arguments=m.Arguments(parameters=[run]),
            )
        )
    tasks += [
        m.DAGTask(
            name="generate",
            template="shards",
            depends=filled,
            arguments=task_arguments(run, first="0", count=plan.format("pods_here")),
        ),
        m.DAGTask(
            name="generate-further",
            template="further",
            depends=filled,
            arguments=task_arguments(
                run,
                **{key: plan.format(key) for key in ("pods", "workflows", *SCHEDULING_PARAMETERS)},
            ),
        ),
        m.DAGTask(
            name="aggregate",
            template="aggregate",
            depends=f"plan.Succeeded && {TASK_ENDED.format('generate')} && {TASK_ENDED.format('generate-further')}",
            arguments=m.Arguments(parameters=[run]),
        ),
    ]
    return m.Template(name="main", dag=m.DAGTemplate(fail_fast=False, tasks=tasks))


def _shards_template(profile: Profile) -> m.Template:
    """`count` shards from `first` on, in groups. Also the entry point of the further workflows."""
    task = m.DAGTask(
        name="group",
        template="group",
        arguments=task_arguments(
            RUN_ARGUMENT, number="{{item}}", **forward_inputs("first", "count")
        ),
        with_sequence=m.Sequence(
            count=m.IntOrString(
                f"{{{{=sprig.div(sprig.add(inputs.parameters.count, {GROUP_SHARDS - 1}), {GROUP_SHARDS})}}}}"
            )
        ),
    )
    mutex = profile.sharing.mutex
    return m.Template(
        name="shards",
        inputs=declare_inputs("run", "first", "count"),
        dag=m.DAGTemplate(fail_fast=False, tasks=[task]),
        # Here and not on the whole workflow, whose further workflows would wait for it for ever.
        synchronization=m.Synchronization(mutexes=[m.Mutex(name=mutex)]) if mutex else None,
    )


def _group_template() -> m.Template:
    """The group's own shards, worked out here: an expression sees inputs and items at different times."""
    before = f"sprig.mul(inputs.parameters.number, {GROUP_SHARDS})"
    start = f"{{{{=sprig.add(inputs.parameters.first, {before})}}}}"
    count = f"{{{{=sprig.min({GROUP_SHARDS}, sprig.sub(inputs.parameters.count, {before}))}}}}"
    task = m.DAGTask(
        name="shard",
        template="generate",
        arguments=task_arguments(RUN_ARGUMENT, shard="{{item}}"),
        with_sequence=m.Sequence(start=m.IntOrString(start), count=m.IntOrString(count)),
    )
    dag = m.DAGTemplate(fail_fast=False, tasks=[task])
    return m.Template(
        name="group", inputs=declare_inputs("run", "number", "first", "count"), dag=dag
    )
