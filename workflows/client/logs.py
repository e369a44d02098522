"""What a workflow's pods have logged, and what they log while somebody listens."""

import time
from collections.abc import Iterator

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import connect
from imagekiln.workflows.client.nodes import PodAttempt, pod_attempts
from imagekiln.workflows.client.status import read_available_status
from imagekiln.workflows.objects import Json

POLL_SECONDS = 5.0
EXECUTOR_MARKER = " argo=true"  # what its executor says of itself in our container's log


def logs(
    name: str,
    namespace: str,
    shard: int | None = None,
    argo: ArgoApi | None = None,
    *,
    follow: bool = False,
    every: float = POLL_SECONDS,
) -> Iterator[str]:
    """The lines that a workflow's pods have logged: of all, each with its pod's step, or of one shard.

    With `follow`, until the workflow has ended: of one pod to its end, then of the next. Raises Missing where there is
    no pod.
    """
    argo, told = argo or connect(), set[str]()
    while True:
        there = argo.get("Workflow", namespace, name)
        ended = read_available_status(there).ended
        for each in _select_pods(there, shard):
            if each.pod not in told and (ended or not follow or each.phase != "Pending"):
                told.add(each.pod)
                yield from _pod_lines(
                    namespace, name, each, argo, follow=follow, labelled=shard is None
                )
        if ended or not follow:
            break
        time.sleep(every)
    if not told:
        raise Missing(
            f"{name}: has no pod{'' if shard is None else f' of shard {shard}'} yet. Wait, or see `watch`."
        )


def _select_pods(workflow: Json, shard: int | None) -> list[PodAttempt]:
    found = [
        each
        for tried in pod_attempts(workflow)
        for each in tried
        if shard is None or each.shard == shard
    ]
    return sorted(found, key=lambda each: each.started or "~")


def _pod_lines(
    namespace: str, name: str, pod: PodAttempt, argo: ArgoApi, *, follow: bool, labelled: bool
) -> Iterator[str]:
    label = pod.step if pod.shard is None else f"{pod.step} {pod.shard}"
    try:
        for line in argo.logs(namespace, name, pod.pod, follow=follow):
            if EXECUTOR_MARKER not in line:
                yield f"{label}: {line}" if labelled else line
    except (Missing, BadInput) as error:
        yield f"{label}: no log: {error}"
