"""The values of a run's metrics, which pods leave as output parameters for Argo's controller.

`aggregate` leaves what it counted as one parameter, `figures`. The exit handler's pod makes a value
of every metric from it (`workflows/templates/metrics.py`), also where it is missing.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import KilnError, Missing
from imagekiln.steps.runs.run import split_address
from imagekiln.steps.storage import open_store
from imagekiln.workflows.pod.outputs import write_parameters
from imagekiln.workflows.templates.metrics import (
    COST,
    GPU_USES,
    IMAGE_STATUSES,
    JOB_OUTPUT,
    SPENT_FIGURES,
    UNKNOWN_JOB,
)
from imagekiln.workflows.templates.workflow import JOB_LABEL

MISSING = "missing"
DECIMALS = 3


@dataclass(frozen=True, slots=True)
class EndedWorkflow:
    """Facts of a workflow that has ended, as text of the exit handler's template.

    `workflow` is NAMESPACE/NAME. An output that no step has set is Argo's own variable.
    """

    workflow: str = ""
    status: str = ""
    job: str = ""
    images: str = ""
    figures: str = ""
    labels: str = ""
    created_at: str = ""
    report_node: str = ""


def read_spending(run: str) -> dict[str, float] | None:
    """GPU seconds by use, and the cost of all, as the run's last aggregation had them.

    Zeros before the first one; None if that is unknown.
    """
    with suppress(KilnError):
        summary = _find_summary(run)
        return dict.fromkeys(SPENT_FIGURES, 0.0) if summary is None else _spending_of(summary)
    return None


def write_figures(
    folder: Path, run: str, before: Mapping[str, float] | None, *, is_counted: bool
) -> None:
    """Write what one aggregation adds to the metrics of its job; nothing without a summary.

    Images are those of the run, if this aggregation counted them. GPU time and cost are counters,
    and a summary has those of all attempts so far: they grow by what it has more than `before`.
    """
    with suppress(KilnError):  # how the aggregation ended matters more
        summary = _find_summary(run)
        if summary is None:
            return
        counted = IMAGE_STATUSES if is_counted else ()
        figures: dict[str, float] = {status: summary.statuses.get(status, 0) for status in counted}
        if before is not None:
            spent = _spending_of(summary)
            figures |= {
                name: round(max(0.0, spent[name] - before[name]), DECIMALS) for name in spent
            }
        write_parameters(folder, {"figures": json.dumps(figures)})


def _find_summary(run: str) -> Summary | None:
    """The summary of a run, or of the run that a retry is of; None if there is none."""
    with suppress(Missing):
        root, _ = split_address(run)
        return load_summary(open_store(root))
    return None


def _spending_of(summary: Summary) -> dict[str, float]:
    gpu_seconds = summary.spending.gpu_seconds
    by_use = {use: getattr(gpu_seconds, use) for use in GPU_USES}
    return {**by_use, COST: summary.cost or 0.0}


def run_metric_values(ended: EndedWorkflow, now: float) -> dict[str, str]:
    """The value of every metric of a run that has ended, by output parameter.

    A run that was not aggregated has no image that is known to be there: all are missing.
    """
    planned = _number(ended.images)
    figures = _parse_figures(ended.figures)
    created_at = _number(ended.created_at)
    values = {
        "seconds": max(0.0, now - created_at) if created_at else 0.0,
        "ended_at": now,
        **dict.fromkeys((*IMAGE_STATUSES, *SPENT_FIGURES), 0.0),
        MISSING: planned,
        **figures,
    }
    texts = {name: f"{value:.15g}" for name, value in values.items()}
    return {JOB_OUTPUT: _job_name(ended), **texts}


def count_images(ended: EndedWorkflow) -> dict[str, int]:
    """The images of the run by status, those that there are; none where it was not aggregated."""
    figures = _parse_figures(ended.figures)
    counts = {status: int(figures.get(status, 0)) for status in IMAGE_STATUSES}
    return {status: images for status, images in counts.items() if images}


def _job_name(ended: EndedWorkflow) -> str:
    """The job's name, by its plan, else by the label of the workflow."""
    if ended.job and ended.job != UNKNOWN_JOB and not is_variable(ended.job):
        return ended.job
    labels: object = {}
    with suppress(ValueError):
        labels = json.loads(ended.labels)
    label = labels.get(JOB_LABEL) if isinstance(labels, dict) else None
    return label if isinstance(label, str) and label else UNKNOWN_JOB


def _parse_figures(text: str) -> dict[str, float]:
    """Return the counts of the aggregation; none if it did not get that far."""
    figures: object = {}
    with suppress(ValueError):  # Argo leaves its own variable where no step has set it
        figures = json.loads(text)
    if not isinstance(figures, dict):
        return {}
    names = (*IMAGE_STATUSES, *SPENT_FIGURES)
    return {name: figures[name] for name in names if isinstance(figures.get(name), int | float)}


def _number(text: str) -> float:
    """The number, or 0 where a step has left none."""
    with suppress(ValueError):
        return float(text)
    return 0.0


def is_variable(text: str) -> bool:
    """Return whether Argo left its own variable in place, since no step has set the output."""
    return text.startswith("{{")
