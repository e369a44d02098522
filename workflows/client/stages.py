"""The stages of a workflow, by the steps that Argo has begun."""

from collections.abc import Iterable
from typing import Literal

Stage = Literal["rewrite", "plan", "fetch", "generate", "aggregate", "report"]

# By template, in the order in which a workflow runs them.
STAGES: dict[str, Stage] = {
    "fetch-language-model": "rewrite",
    "rewrite": "rewrite",
    "plan": "plan",
    "fetch": "fetch",
    "generate": "generate",
    "further-one": "generate",
    "aggregate": "aggregate",
    "report": "report",
    "publish-report": "report",
}
STEP_ORDER = list(STAGES)


def current_stage(steps: Iterable[str], *, planned: bool) -> Stage:
    """The furthest stage that has begun; between two pods, the one that comes next."""
    begun = [step for step in steps if step in STAGES]
    stage = STAGES[max(begun, key=step_order)] if begun else "plan"
    if stage == "plan" and planned:
        return "generate"
    return stage


def is_finish_step(step: str) -> bool:
    """Whether a step is one of the exit handler, whose failure changes no workflow."""
    return STAGES.get(step) == "report"


def step_order(step: str) -> int:
    """The place of a step among those of a workflow; last for one that is not ours."""
    return STEP_ORDER.index(step) if step in STAGES else len(STEP_ORDER)
