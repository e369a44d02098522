"""The runs that a gallery shows: one run, or all runs under an output that were aggregated."""

from dataclasses import dataclass

import pyarrow as pa

from imagekiln.steps.dataset.runs import (
    RunSource,
    describe_source,
    unite_columns,
)
from imagekiln.steps.errors import BadInput, Incomplete, Missing
from imagekiln.steps.maintain.run_list import open_runs
from imagekiln.steps.runs.rounds import Run
from imagekiln.steps.runtime.concurrency import map_ordered

READERS = 16


@dataclass(frozen=True, slots=True)
class GalleryRun:
    """A run whose manifest is whole, and what its plan says of that."""

    run: Run
    source: RunSource

    @property
    def run_id(self) -> str:
        """The run's id, which is the name of its folder."""
        return self.run.plan.run_id


@dataclass(frozen=True, slots=True)
class GalleryRuns:
    """The runs of a gallery, newest first.

    `problems` are sentences on the runs and the columns that are left out.
    """

    uri: str
    runs: tuple[GalleryRun, ...]
    columns: pa.Schema
    problems: tuple[str, ...] = ()


def find_gallery_runs(uri: str) -> GalleryRuns:
    """The run at `uri`, or the aggregated runs under it, also those that were not accepted.

    Raises Missing where there are none, BadInput where it is the output of no job, TryAgain.
    """
    plans = sorted(
        open_runs(uri, skips_unreadable=True),
        key=lambda run: (run.plan.created_at, run.plan.run_id),
        reverse=True,
    )
    described = list(map_ordered(lambda index: _describe(plans[index]), len(plans), READERS))
    runs = tuple(run for run in described if isinstance(run, GalleryRun))
    problems = [str(run) for run in described if not isinstance(run, GalleryRun)]
    if not runs:
        raise Missing(f"{uri}: has no run that was aggregated. Run its job to the end first.")

    sources = tuple(run.source for run in runs)
    columns = unite_columns(sources, names=())
    names = dict.fromkeys(name for source in sources for name in source.columns.names)
    problems += [
        f"The column {name!r} has different types in these runs, and cannot be filtered by."
        for name in names
        if name not in columns.names
    ]
    return GalleryRuns(uri, runs, columns, tuple(problems))


def _describe(run: Run) -> GalleryRun | BadInput | Incomplete:
    """The run, or why it cannot be shown. Raises TryAgain."""
    try:
        return GalleryRun(run, describe_source(run.store, run.plan))
    except (BadInput, Incomplete) as error:
        return error
