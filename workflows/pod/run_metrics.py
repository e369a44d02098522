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
from imagekiln.workflows.client.pods import parse_figures
from imagekiln.workflows.objects import get_texts
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
    """Return the value of every metric of a run that has ended, by output parameter.

    A run that was not aggregated has no image that is known to be there: all are missing.
    """
    created_at = float(set_value(ended.created_at) or now)
    values = {
        "seconds": max(0.0, now - created_at),
        "ended_at": now,
        **dict.fromkeys((*IMAGE_STATUSES, *SPENT_FIGURES), 0.0),
        MISSING: float(set_value(ended.images) or 0),
        **parse_figures(ended.figures),
    }
    texts = {name: f"{value:.15g}" for name, value in values.items()}
    return {JOB_OUTPUT: _job_name(ended), **texts}


def _job_name(ended: EndedWorkflow) -> str:
    """Return the job's name, by its plan, else by the label of the workflow."""
    name = set_value(ended.job)
    if name and name != UNKNOWN_JOB:
        return name
    labels = json.loads(set_value(ended.labels) or "{}")
    return get_texts(labels).get(JOB_LABEL) or UNKNOWN_JOB


def set_value(text: str) -> str:
    """Return the value of an output; empty if no step has set it: then Argo leaves its variable."""
    return "" if text.startswith("{{") else text
