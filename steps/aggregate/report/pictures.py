"""The images of the report: a random sample, a few of each gate, and the grid of a sweep."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from imagekiln.steps.aggregate.image_table import ImageTable, Row, read_rows
from imagekiln.steps.aggregate.report.sweep_grid import SweepGrid, build_grid, pick_sweep
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_TEXT_CHARS = 500
LONG_TEXTS = ("id", "prompt", "marks_reason")
MAX_SAMPLES = 96
MAX_SAMPLES_PER_GATE = 6
# Ids are hashes, so that the lowest ones are a random sample.
SELECT_SAMPLES = """
    SELECT rowid FROM images WHERE status = 'ok' AND {condition} ORDER BY image_id LIMIT {most}"""
IS_MARKED = "rowid IN (SELECT number FROM marks WHERE gate = ?)"


@dataclass(frozen=True, slots=True)
class PictureNumbers:
    """The numbers of the images to show."""

    sample: list[int]
    by_gate: dict[str, list[int]]
    sweep: list[int]


@dataclass(frozen=True, slots=True)
class Pictures:
    """The images to show, as rows of the manifest whose long texts are truncated."""

    sample: list[Row] = field(default_factory=list)
    by_gate: dict[str, list[Row]] = field(default_factory=dict)
    grid: SweepGrid | None = None

    @property
    def distinct(self) -> list[Row]:
        """Each image once, in the order in which thumbnails are numbered."""
        rows = [*chain.from_iterable(self.by_gate.values()), *self.sample]
        if self.grid is not None:
            rows += self.grid.images
        return list({row["image_id"]: row for row in rows}.values())


def pick_pictures(table: ImageTable, plan: Plan) -> PictureNumbers:
    """Choose the images to show."""
    job = plan.job
    sweep = pick_sweep(table, job)
    sample = table.fetch_numbers(SELECT_SAMPLES.format(condition="true", most=MAX_SAMPLES))
    of_gate = SELECT_SAMPLES.format(condition=IS_MARKED, most=MAX_SAMPLES_PER_GATE)
    return PictureNumbers(
        sample=[number for number in sample if number not in sweep],
        by_gate={gate: table.fetch_numbers(of_gate, gate) for gate in job.marking_gates},
        sweep=sweep,
    )


def read_pictures(
    plan: Plan, numbers: PictureNumbers, read_manifest: Callable[[int], pa.Table]
) -> Pictures:
    """Read the rows of the images to show."""
    needed = chain(numbers.sample, numbers.sweep, *numbers.by_gate.values())
    rows = read_rows(plan, needed, read_manifest)
    for row in rows.values():
        for name in LONG_TEXTS:
            row[name] = row[name] and truncate_text(row[name], MAX_TEXT_CHARS)
    swept = [rows[number] for number in numbers.sweep]
    return Pictures(
        sample=[rows[number] for number in numbers.sample],
        by_gate={
            gate: [rows[number] for number in of_gate] for gate, of_gate in numbers.by_gate.items()
        },
        grid=build_grid(plan.job, swept, plan.input.rows),
    )
