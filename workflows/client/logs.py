"""Logs of a workflow's pods, once or followed until the workflow ends."""

import time
from collections.abc import Collection, Iterator

from imagekiln.steps.errors import BadInput, Missing, first_line
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import connect, next_command
from imagekiln.workflows.client.http import Forbidden, LoginRefused
from imagekiln.workflows.client.pods import ENDED_PHASES, PodAttempt, pod_attempts
from imagekiln.workflows.client.status import has_ended
from imagekiln.workflows.objects import Json

POLL_SECONDS = 5.0
ADVICE = "`archive_logs: true` in the profile keeps the logs of pods that Argo deletes."
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
    """Yield the log lines of one shard's pods, or of all pods, each line with its pod's step.

    With `follow`, each pod's log is read to its end, then the next pod's, until the workflow has
    ended. Raises Missing if no pod has started.
    """
    argo = argo or connect()
    printed: set[str] = set()
    while True:
        workflow = argo.get("Workflow", namespace, name)
        for pod in _select_pods(workflow, shard, printed):
            printed.add(pod.pod)
            label = "" if shard is not None else _pod_label(pod)
            is_empty = True
            for line in _pod_lines(pod, name, namespace, argo, follow=follow):
                is_empty = False
                yield label + line
            if is_empty and pod.phase in ENDED_PHASES:
                details = ", ".join(filter(None, (pod.phase, first_line(pod.message))))
                yield f"{label}pod {pod.pod} has no log ({details}). {ADVICE}"
        if not follow or has_ended(workflow):
            break
        time.sleep(every)

    if not printed:
        noun = "pod" if shard is None else f"pod of shard {shard}"
        watch = next_command("watch", name, namespace)
        raise Missing(f"{name}: has no {noun} that has started. Wait, or see {watch}.")


def _select_pods(workflow: Json, shard: int | None, printed: Collection[str]) -> list[PodAttempt]:
    """Select started pods that are not printed yet, of one shard or all, ordered by start.

    A pod that Argo could not create has an end but no start.
    """
    attempts = [attempt for pod in pod_attempts(workflow) for attempt in pod]
    selected = [
        pod
        for pod in attempts
        if pod.phase != "Pending" and pod.pod not in printed and shard in (None, pod.shard)
    ]
    return sorted(selected, key=lambda pod: pod.started or "~")


def _pod_lines(
    pod: PodAttempt, workflow: str, namespace: str, argo: ArgoApi, *, follow: bool
) -> Iterator[str]:
    """Yield the lines of one pod's log; none if neither Kubernetes nor Argo's archive has it."""
    try:
        for line in argo.logs(namespace, workflow, pod.pod, follow=follow):
            if EXECUTOR_MARKER not in line:
                yield line
    except (Forbidden, LoginRefused):  # the right is missing for all pods
        raise
    except BadInput as error:
        if not isinstance(error, Missing) or pod.phase not in ENDED_PHASES:
            yield f"pod {pod.pod} has no log: {error}"


def _pod_label(pod: PodAttempt) -> str:
    return f"{pod.step}: " if pod.shard is None else f"{pod.step} {pod.shard}: "
