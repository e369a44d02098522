"""The steps of a workflow: their stages, those that failed, and the cause of a failed run."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Stage = Literal["rewrite", "plan", "fetch", "generate", "aggregate", "export", "report"]

# By template, in the order in which a workflow runs them.
STAGES: dict[str, Stage] = {
    "fetch-language-model": "rewrite",
    "rewrite": "rewrite",
    "plan": "plan",
    "fetch": "fetch",
    "generate": "generate",
    "further-one": "generate",
    "aggregate": "aggregate",
    "export": "export",
    "report": "report",
    "publish-report": "report",
}
STEP_ORDER = list(STAGES)
EXIT_CODE_PATTERN = re.compile(r"exit code (\d+)")
# What Argo writes before the message that a pod left: `main: Error (exit code 75): `.
CONTAINER_PREFIX = re.compile(r"^(?:main|wait|init|supervisor): \w+ \(exit code \d+\): ")
SHUTDOWN_MESSAGE = "workflow shutdown with strategy"  # of pods that a stop ended or kept away
STOPPED = "somebody stopped the workflow"
MAX_NUMBERS = 5  # shards that a cause names


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A step that failed after its last attempt, with the message of that attempt's pod."""

    step: str
    shard: int | None
    attempts: int
    message: str

    @property
    def exit_code(self) -> int | None:
        """The pod's exit code, if Argo's message names one."""
        match = EXIT_CODE_PATTERN.search(self.message)
        return int(match[1]) if match else None

    @property
    def was_stopped(self) -> bool:
        """Return whether somebody stopped the workflow, rather than that the step failed."""
        return SHUTDOWN_MESSAGE in self.message

    @property
    def reason(self) -> str:
        """The message in a line, without what Argo puts before it."""
        if self.was_stopped:
            return STOPPED
        lines = CONTAINER_PREFIX.sub("", self.message.strip()).splitlines()
        return lines[0] if lines else "no message"


def failure_cause(failures: Sequence[StepFailure]) -> str | None:
    """The cause of a failed run in one line: the commonest reason of the first step that failed.

    What fails after it, such as aggregate for want of images, follows from it.
    """
    if not failures:
        return None
    # A stop ends what was under way, also after another failure.
    failures = [failure for failure in failures if not failure.was_stopped] or failures
    first = min(failures, key=lambda failure: step_order(failure.step)).step
    reasons = Counter(failure.reason for failure in failures if failure.step == first)
    ((reason, _),) = reasons.most_common(1)
    same = [failure for failure in failures if (failure.step, failure.reason) == (first, reason)]
    return f"{_subject(same)}: {reason}"


def _subject(failures: Sequence[StepFailure]) -> str:
    """Name the failed steps, such as `generate of shards 3 and 7`."""
    step = failures[0].step
    shards = sorted(failure.shard for failure in failures if failure.shard is not None)
    if not shards:
        return step
    if len(shards) == 1:
        return f"{step} of shard {shards[0]}"
    if len(shards) > MAX_NUMBERS:
        return f"{step} of {len(shards)} shards"
    return f"{step} of shards {', '.join(map(str, shards[:-1]))} and {shards[-1]}"


def current_stage(steps: Iterable[str], *, planned: bool) -> Stage:
    """The furthest stage that has begun; between two pods, the one that comes next."""
    begun = [step for step in steps if step in STAGES]
    stage = STAGES[max(begun, key=step_order)] if begun else "plan"
    if stage == "plan" and planned:
        return "generate"
    return stage


def is_finish_step(step: str) -> bool:
    """Return whether a step is one of the exit handler, whose failure changes no workflow."""
    return STAGES.get(step) == "report"


def step_order(step: str) -> int:
    """The place of a step among those of a workflow; last for one that is not ours."""
    return STEP_ORDER.index(step) if step in STAGES else len(STEP_ORDER)
