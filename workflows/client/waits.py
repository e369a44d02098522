"""Reasons why pods wait, from the messages of Argo and Kubernetes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from imagekiln.workflows.client.nodes import PodAttempt
from imagekiln.workflows.objects import Json, get_mapping

# By a pattern of the message: the cause in words. The first that matches counts.
CAUSES = (
    (re.compile(r"Waiting for .+ lock"), "other batches hold the semaphore or mutex"),
    (re.compile(r"exceeded quota"), "the quota is used up"),
    (re.compile(r"TriggeredScaleUp|Nominated"), "a node is being added"),
    (re.compile(r"Insufficient [\w.-]+/|cannot allocate all claims"), "no GPU is free"),
    (re.compile(r"Insufficient \w"), "no node has room"),
    (
        re.compile(r"FailedMount|FailedAttachVolume|[Pp]ersistent[Vv]olume|volume node affinity"),
        "a volume is not ready",
    ),
    (re.compile(r"didn't match Pod's|untolerated taint"), "no node fits the profile"),
    (
        re.compile(
            r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|ImageInspect|"
            r"Failed to pull image"
        ),
        "the image cannot be pulled",
    ),
    (re.compile(r"Pulling"), "the image is being pulled"),
    (re.compile(r"CreateContainerConfigError"), "a Secret or ConfigMap is missing"),
    (re.compile(r"FailedCreatePodSandBox|FailedScheduling"), "Kubernetes cannot start it"),
)
# Causes that may pass, or never will: Kubernetes' message does not tell them apart.
UNFIT_CAUSES = ("no GPU is free", "no node has room", "no node fits the profile")
UNSAID = ("", "ContainerCreating", "PodInitializing")  # messages that explain nothing
STARTING = "it is being started"
# Warnings about DNS: the pod starts nevertheless.
HARMLESS = ("MissingClusterDNS", "DNSConfigForming")
RETRY_PAUSE = "the next attempt comes after a pause"


@dataclass(frozen=True, slots=True)
class StepWait:
    """Pods of one step that wait for the same. `message` is Argo's or Kubernetes' own, of one."""

    step: str
    pods: int
    cause: str
    message: str
    pod: str | None = None


def find_waits(attempts: Sequence[PodAttempt]) -> tuple[StepWait, ...]:
    """Group waiting pods by reason, the commonest first, from the latest attempt at each."""
    groups: dict[tuple[str, str], StepWait] = {}
    for attempt in attempts:
        if not attempt.is_waiting:
            continue
        wait = _to_wait(attempt)
        key = (wait.step, wait.cause)
        first = groups.get(key)
        groups[key] = replace(first, pods=first.pods + 1) if first else wait
    return tuple(sorted(groups.values(), key=lambda wait: -wait.pods))


def _to_wait(attempt: PodAttempt) -> StepWait:
    if attempt.next_attempt is None:
        cause = find_cause(attempt.message)
        return StepWait(attempt.step, 1, cause, attempt.message, attempt.pod)
    parts = filter(None, (attempt.next_attempt, f"the last one ended with {attempt.message}"))
    return StepWait(attempt.step, 1, RETRY_PAUSE, "; ".join(parts))


def find_cause(message: str) -> str:
    """A message of Argo or Kubernetes in words; the message itself if it matches nothing."""
    if message in UNSAID:
        return STARTING
    for pattern, cause in CAUSES:
        if pattern.search(message):
            return cause
    return message


def needs_events(wait: StepWait) -> bool:
    """Return whether only the events of its pod say what is waited for."""
    return wait.pod is not None and wait.message in UNSAID


def explain_wait(wait: StepWait, events: Sequence[Json]) -> StepWait:
    """A wait with the latest event of its pod in place of no message."""
    explaining = [event for event in events if event.get("reason") not in HARMLESS]
    if not explaining:
        return wait
    latest = max(explaining, key=_event_order)
    message = f"{latest.get('reason', '')}: {latest.get('message', '')}"
    cause = find_cause(message)
    if cause == message and not _is_warning(latest):
        cause = STARTING  # one of the steps of a normal start
    return replace(wait, cause=cause, message=message)


def _event_order(event: Json) -> tuple[str, bool, int]:
    """Order events by their last time, then warnings and long ones first.

    Of those in the same second, "Failed to pull image NAME: ..." says more than "ErrImagePull".
    """
    series = get_mapping(event, "series")
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
    )
    when = str(next(filter(None, times), ""))
    return when, _is_warning(event), len(str(event.get("message", "")))


def _is_warning(event: Json) -> bool:
    return event.get("type") == "Warning"
