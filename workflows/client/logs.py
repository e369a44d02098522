"""The logs of a workflow's pods, once or followed until the workflow ends."""

import time
from collections.abc import Collection, Iterator, Sequence

from imagekiln.steps.errors import BadInput, Missing, first_line
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import connect, next_command
from imagekiln.workflows.client.failures import Forbidden, LoginRefused
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
    Raises Missing if there is no pod.
    """
    argo = argo or connect()
    printed: set[str] = set()
    deleted: list[str] = []
    while True:
        workflow = argo.get("Workflow", namespace, name)
        ended = read_available_status(workflow).ended
        pods = _select_pods(workflow, shard, printed, with_waiting=ended or not follow)
        for pod in pods:
            printed.add(pod.pod)
            label = _pod_label(pod) if shard is None else ""
            try:
                for line in _pod_lines(pod, name, namespace, argo, follow=follow):
                    yield label + line
            except _LogDeleted:
                deleted.append(pod.pod)
        if ended or not follow:
            break
        time.sleep(every)

    if deleted:
        yield _describe_deleted(deleted)
    if not printed:
        _require_shard(shard, name, workflow)
        noun = "pod" if shard is None else f"pod of shard {shard}"
        watch = next_command("watch", name, namespace)
        raise Missing(f"{name}: has no {noun} yet. Wait, or see {watch}.")


def _require_shard(shard: int | None, name: str, workflow: Json) -> None:
    """Raise Missing if the workflow never makes a pod for such a shard."""
    pods = int(plan_outputs(workflow).get("pods", "0"))
    if shard is not None and pods and shard >= pods:
        raise Missing(
            f"{name}: has {pluralize(pods, 'shard')}, so no shard {shard}. Choose 0 to {pods - 1}."
        )


def _select_pods(
    workflow: Json, shard: int | None, printed: Collection[str], *, with_waiting: bool
) -> list[PodAttempt]:
    """Select the attempts at all pods, or at those of one shard, in the order of their start.

    Without those that are printed and, unless `with_waiting`, those that have not started.
    """
    pods: list[PodAttempt] = []
    for attempts in pod_attempts(workflow):
        pods += attempts
    if shard is not None:
        pods = [pod for pod in pods if pod.shard == shard]
    if not with_waiting:
        pods = [pod for pod in pods if pod.phase != "Pending"]
    pods = [pod for pod in pods if pod.pod not in printed]
    return sorted(pods, key=lambda pod: pod.started or "~")


class _LogDeleted(Exception):
    """A pod succeeded, and its log went with it."""


def _pod_lines(
    pod: PodAttempt, workflow: str, namespace: str, argo: ArgoApi, *, follow: bool
) -> Iterator[str]:
    """The lines of one pod's log; where there is none, one line that says why.

    Raises _LogDeleted if that is the same for every pod.
    """
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
    except (Forbidden, LoginRefused):  # of this pod, and of all others
        raise
    except (Missing, BadInput) as error:
        if isinstance(error, Missing) and pod.phase in ENDED_PHASES:
            yield _describe_absence(pod, has_executor_lines=has_executor_lines)
        else:
            yield f"pod {pod.pod} has no log: {error}"


def _describe_absence(pod: PodAttempt, *, has_executor_lines: bool) -> str:
    """Explain why an ended pod has no lines of ours. One that failed may never have existed.

    Raises _LogDeleted if it succeeded.
    """
    if pod.phase == "Succeeded" and not has_executor_lines:
        raise _LogDeleted
    absence = "wrote nothing to its log" if has_executor_lines else "has no log"
    details = [pod.phase, first_line(pod.message)]
    return f"pod {pod.pod} {absence}. Argo says of it: {', '.join(filter(None, details))}"


def _describe_deleted(pods: Sequence[str]) -> str:
    """Explain why these pods have no log any more."""
    label = f"pod {pods[0]} has" if len(pods) == 1 else f"{len(pods)} pods have"
    return f"{label} no log any more: {NOT_ARCHIVED}"


def _pod_label(pod: PodAttempt) -> str:
    """Return what precedes each line of a pod where the lines are those of several."""
    if pod.shard is None:
        return f"{pod.step}: "
    return f"{pod.step} {pod.shard}: "
