"""The logs of a workflow's pods, once or followed until the workflow ends."""

import time
from collections.abc import Iterator

from imagekiln.steps.errors import BadInput, Missing, first_line
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import connect
from imagekiln.workflows.client.next_commands import next_command
from imagekiln.workflows.client.nodes import (
    ENDED_PHASES,
    PodAttempt,
    plan_outputs,
    pod_attempts,
)
from imagekiln.workflows.client.status import read_available_status
from imagekiln.workflows.objects import Json

POLL_SECONDS = 5.0
NOT_ARCHIVED = (
    "Argo deletes pods that succeeded, and keeps their logs only with `archive_logs: true` in the "
    "profile. Otherwise the cluster's own log collector may have them."
)
EXECUTOR_MARKER = " argo=true"  # ends the lines that Argo's executor adds to our container's log


def logs(
    name: str,
    namespace: str,
    shard: int | None = None,
    argo: ArgoApi | None = None,
    *,
    follow: bool = False,
    every: float = POLL_SECONDS,
) -> Iterator[str]:
    """The log lines of one shard's pods, or of all pods, each line with its pod's step.

    With `follow`, until the workflow has ended: each pod's log to its end, then the next pod's.
    Raises Missing where there is no pod.
    """
    argo = argo or connect()
    printed: set[str] = set()
    while True:
        workflow = argo.get("Workflow", namespace, name)
        ended = read_available_status(workflow).ended
        for pod in _select_pods(workflow, shard):
            is_waiting = pod.phase == "Pending" and follow and not ended
            if is_waiting or pod.pod in printed:
                continue
            printed.add(pod.pod)
            label = ""
            if shard is None:
                label = _pod_label(pod)
            for line in _pod_lines(pod, name, namespace, argo, follow=follow):
                yield label + line
        if ended or not follow:
            break
        time.sleep(every)

    if not printed:
        _require_shard(shard, name, workflow)
        pods = "pod" if shard is None else f"pod of shard {shard}"
        watch = next_command("watch", name, namespace)
        raise Missing(f"{name}: has no {pods} yet. Wait, or see {watch}.")


def _require_shard(shard: int | None, name: str, workflow: Json) -> None:
    """Raise Missing where the workflow never makes a pod for such a shard."""
    pods = int(plan_outputs(workflow).get("pods", "0"))
    if shard is not None and pods and shard >= pods:
        raise Missing(
            f"{name}: has {pluralize(pods, 'shard')}, so no shard {shard}. Choose 0 to {pods - 1}."
        )


def _select_pods(workflow: Json, shard: int | None) -> list[PodAttempt]:
    """Every attempt at every pod, or at those of one shard, in the order in which they started."""
    pods: list[PodAttempt] = []
    for attempts in pod_attempts(workflow):
        pods += attempts
    if shard is not None:
        pods = [pod for pod in pods if pod.shard == shard]
    return sorted(pods, key=lambda pod: pod.started or "~")


def _pod_lines(
    pod: PodAttempt, workflow: str, namespace: str, argo: ArgoApi, *, follow: bool
) -> Iterator[str]:
    """The lines of one pod's log; where there is none, one line that says why."""
    is_empty = True
    has_executor_lines = False
    try:
        for line in argo.logs(namespace, workflow, pod.pod, follow=follow):
            if EXECUTOR_MARKER in line:
                has_executor_lines = True
                continue
            is_empty = False
            yield line
        # Argo's server sends nothing once a pod is gone.
        if is_empty and pod.phase in ENDED_PHASES:
            yield _describe_absence(pod, has_executor_lines=has_executor_lines)
    except (Missing, BadInput) as error:
        if isinstance(error, Missing) and pod.phase in ENDED_PHASES:
            yield _describe_absence(pod, has_executor_lines=has_executor_lines)
        else:
            yield f"pod {pod.pod} has no log: {error}"


def _describe_absence(pod: PodAttempt, *, has_executor_lines: bool) -> str:
    """Why an ended pod has no lines of ours. One that failed may never have existed."""
    if pod.phase == "Succeeded" and not has_executor_lines:
        return f"pod {pod.pod} has no log any more: {NOT_ARCHIVED}"
    absence = "wrote nothing to its log" if has_executor_lines else "has no log"
    details = [pod.phase, first_line(pod.message)]
    return f"pod {pod.pod} {absence}. Argo says of it: {', '.join(filter(None, details))}"


def _pod_label(pod: PodAttempt) -> str:
    """What precedes each line of a pod where the lines are those of several."""
    if pod.shard is None:
        return f"{pod.step}: "
    return f"{pod.step} {pod.shard}: "
