"""What each run took and gave: the trends over nights."""

from dataclasses import dataclass
from datetime import datetime

from imagekiln.steps.gallery.runs import GalleryRuns
from imagekiln.steps.maintain.run_list import RunOverview, describe_runs


@dataclass(frozen=True, slots=True)
class NightFigures:
    """A run in the trends. `rate` is in images that are ok per device-hour, `mean` of a column."""

    run_id: str
    job: str
    state: str
    created_at: datetime
    images: int
    ok: int | None
    rate: float | None
    elapsed_seconds: float | None
    device_hours: float | None
    cost: float | None
    mean: float | None = None


def read_nights(runs: GalleryRuns) -> list[NightFigures]:
    """The figures of all runs that have some, oldest first. Raises TryAgain."""
    oldest_first = [run.run for run in runs.runs[::-1]]
    return list(map(_figures, describe_runs(oldest_first)))


def _figures(run: RunOverview) -> NightFigures:
    rate = None
    if run.ok is not None and run.device_hours:
        rate = run.ok / run.device_hours
    return NightFigures(
        run_id=run.run_id,
        job=run.job,
        state=run.state,
        created_at=run.created_at,
        images=run.images,
        ok=run.ok,
        rate=rate,
        elapsed_seconds=run.elapsed_seconds,
        device_hours=run.device_hours,
        cost=run.cost,
    )
