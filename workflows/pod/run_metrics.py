"""The values of a run's metrics, which pods leave as output parameters for Argo's controller.

`aggregate` leaves what it counted as one parameter, `figures`. The exit handler's pod makes a value
of every metric from it (`workflows/templates/metrics.py`), also where it is missing.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from imagekiln.steps.errors import KilnError
from imagekiln.workflows.pod.outputs import write_parameters
from imagekiln.workflows.pod.spending_export import SpendingExport
from imagekiln.workflows.templates.metrics import (
    IMAGE_STATUSES,
    JOB_OUTPUT,
    SPENT_FIGURES,
    UNKNOWN_JOB,
)
from imagekiln.workflows.templates.workflow import JOB_LABEL

MISSING = "missing"


def write_figures(folder: Path, export: SpendingExport, *, is_counted: bool) -> None:
    """Write what one aggregation adds to the metrics of its job; nothing without a summary.

    Images are those of the run, where this aggregation counted them. GPU time and cost are
    counters, and a summary's are of all attempts so far: of these, what no other workflow exports,
    and nothing where that is unknown.
    """
    summary = export.read_summary()
    if summary is None:
        return
    counted = IMAGE_STATUSES if is_counted else ()
    images = {status: summary.statuses.get(status, 0) for status in counted}
    figures = json.dumps({**images, **export.end(summary)})
    with suppress(KilnError):  # how the aggregation ended matters more
        write_parameters(folder, {"figures": figures})


def run_metric_values(environment: Mapping[str, str], now: float) -> dict[str, str]:
    """The value of every metric of a run that has ended, by output parameter.

    A run that was not aggregated has no image that is known to be there: all are missing.
    """
    planned = _number(environment.get("IMAGEKILN_IMAGES", ""))
    figures = _parse_figures(environment.get("IMAGEKILN_FIGURES", ""))
    created_at = _number(environment.get("IMAGEKILN_CREATED_AT", ""))
    values = {
        "seconds": max(0.0, now - created_at) if created_at else 0.0,
        "ended_at": now,
        **dict.fromkeys((*IMAGE_STATUSES, *SPENT_FIGURES), 0.0),
        MISSING: planned,
        **figures,
    }
    texts = {name: f"{value:.15g}" for name, value in values.items()}
    return {JOB_OUTPUT: _job_name(environment), **texts}


def count_images(environment: Mapping[str, str]) -> dict[str, int]:
    """The images of the run by status, those that there are; none where it was not aggregated."""
    text = environment.get("IMAGEKILN_FIGURES", "")
    figures = _parse_figures(text)
    counts: dict[str, int] = {}
    for status in IMAGE_STATUSES:
        images = int(figures.get(status, 0))
        if images:
            counts[status] = images
    return counts


def _job_name(environment: Mapping[str, str]) -> str:
    """The job's name, by its plan, else by the label of the workflow."""
    name = environment.get("IMAGEKILN_JOB_NAME", "")
    if name and name != UNKNOWN_JOB and not _is_variable(name):
        return name
    labels: object = {}
    with suppress(ValueError):
        labels = json.loads(environment.get("IMAGEKILN_LABELS", ""))
    label = labels.get(JOB_LABEL) if isinstance(labels, dict) else None
    return label if isinstance(label, str) and label else UNKNOWN_JOB


def _parse_figures(text: str) -> dict[str, float]:
    """What aggregation counted; nothing where it did not get that far."""
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


def _is_variable(text: str) -> bool:
    return text.startswith("{{")
