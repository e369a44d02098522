"""Images of the report: a random sample, a few per gate, and the grid of a sweep.

The grid has the first prompts as rows and settings as columns. If several settings vary, the last
varies by column, and each prompt has a line per combination of the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, product
from math import prod

import pyarrow as pa

from imagekiln.steps.aggregate.image_table import ImageTable, Row, read_rows
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.image import describe_setting
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.figures import format_count
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_VALUES = 12  # columns, and also lines per prompt
MAX_CELLS = 240
MAX_PROMPTS = 40
NOT_MADE = "not in this run"
SELECT_SWEEP = """
    WITH shown AS (
        SELECT rowid AS number, input_row // {cells} AS prompt, input_row % {cells} AS cell
        FROM images
        WHERE image_index < {candidates} AND {is_best}
            AND cell // {width} < {lines} AND cell % {width} < {columns}
    )
    SELECT number FROM shown
    WHERE prompt IN (SELECT DISTINCT prompt FROM shown ORDER BY prompt LIMIT {prompts})"""
MAX_TEXT_CHARS = 500
LONG_TEXTS = ("id", "prompt", "marks_reason")
MAX_SAMPLES = 96
MAX_SAMPLES_PER_GATE = 6
# Ids are hashes, so the lowest ids are a random sample.
SELECT_SAMPLES = """
    SELECT rowid FROM images WHERE status = 'ok' AND {condition} ORDER BY image_id LIMIT {most}"""
IS_MARKED = "rowid IN (SELECT number FROM marks WHERE gate = ?)"


@dataclass(frozen=True, slots=True)
class GridPrompt:
    """A prompt of the grid with its images by line, or the status of an image that is not ok."""

    prompt: str
    cells: tuple[Row | str, ...]


@dataclass(frozen=True, slots=True)
class SweepGrid:
    """The grid of a sweep: headings of columns and of lines, prompts, and a note.

    If only one setting varies, each prompt has a single line with an empty heading.
    """

    columns: tuple[str, ...]
    lines: tuple[str, ...]
    prompts: tuple[GridPrompt, ...]
    note: str

    @property
    def images(self) -> list[Row]:
        """Images in the grid."""
        cells = [cell for prompt in self.prompts for cell in prompt.cells]
        return [cell for cell in cells if not isinstance(cell, str)]


@dataclass(frozen=True, slots=True)
class GridShape:
    """The shape of a grid: the settings that vary, and the numbers of lines and columns shown."""

    settings: Mapping[str, Sequence[object]]

    @property
    def cells(self) -> int:
        """Number of images per prompt."""
        return prod(map(len, self.settings.values()))

    @property
    def width(self) -> int:
        """Number of values of the setting that varies by column."""
        *_, across = self.settings.values()
        return len(across)

    @property
    def columns(self) -> int:
        """Number of columns shown."""
        return min(MAX_VALUES, self.width)

    @property
    def lines(self) -> int:
        """Number of lines shown per prompt."""
        return min(MAX_VALUES, self.cells // self.width)

    @property
    def prompts(self) -> int:
        """Maximum number of prompts shown."""
        return min(MAX_PROMPTS, MAX_CELLS // (self.columns * self.lines))


def _grid_shape(job: Job) -> GridShape | None:
    """Return the shape of a job's grid; None if no setting varies."""
    settings = {name: values for name, values in job.swept.items() if len(values) > 1}
    return GridShape(settings) if settings else None


def pick_sweep(table: ImageTable, job: Job) -> list[int]:
    """Choose the numbers of images for the grid, from the first prompts with images in the run.

    For rows with several images, the first image is chosen, or the best of its candidates.
    """
    shape = _grid_shape(job)
    if shape is None:
        return []
    is_best = "true"
    if job.keep is not None:
        is_best = f"coalesce({table.values[RANK_COLUMN]}, 1) = 1 AND status <> 'outscored'"
    sql = SELECT_SWEEP.format(
        cells=shape.cells,
        width=shape.width,
        lines=shape.lines,
        columns=shape.columns,
        prompts=shape.prompts,
        candidates=job.candidates,
        is_best=is_best,
    )
    return table.fetch_numbers(sql)


def build_grid(job: Job, rows: Sequence[Row], input_rows: int) -> SweepGrid | None:
    """Build the grid of manifest rows, for a run on `input_rows` rows; None if it is empty."""
    shape = _grid_shape(job)
    if shape is None or not rows:
        return None
    cells: dict[int, Row | str] = {}
    texts: dict[int, str] = {}
    for row in sorted(rows, key=lambda row: row["status"] == "ok"):
        cells[row["input_row"]] = row if row["status"] == "ok" else row["status"]
        texts[row["input_row"] // shape.cells] = row["prompt"]
    prompts = []
    for number, text in sorted(texts.items()):
        first = number * shape.cells
        shown: list[Row | str] = []
        for line in range(shape.lines):
            start = first + line * shape.width
            shown += [cells.get(start + column, NOT_MADE) for column in range(shape.columns)]
        prompts.append(GridPrompt(text, tuple(shown)))
    return _with_headings(shape, prompts, input_rows // shape.cells)


def _with_headings(shape: GridShape, prompts: list[GridPrompt], all_prompts: int) -> SweepGrid:
    *down, across = shape.settings
    columns = [describe_setting(across, value) for value in shape.settings[across]]
    combinations = product(*(shape.settings[name] for name in down))
    lines = [
        ", ".join(map(describe_setting, down, values))
        for values in islice(combinations, shape.lines)
    ]
    note = f"{len(prompts)} of {format_count(all_prompts)} prompts"
    if shape.columns * shape.lines < shape.cells:
        note += f", {shape.columns * shape.lines} of {format_count(shape.cells)} images of each"
    return SweepGrid(tuple(columns[: shape.columns]), tuple(lines), tuple(prompts), f"{note}.")


@dataclass(frozen=True, slots=True)
class PictureNumbers:
    """Numbers of the images in the report."""

    sample: list[int]
    by_gate: dict[str, list[int]]
    sweep: list[int]


@dataclass(frozen=True, slots=True)
class Pictures:
    """Images of the report, as manifest rows with long strings truncated."""

    sample: list[Row] = field(default_factory=list)
    by_gate: dict[str, list[Row]] = field(default_factory=dict)
    grid: SweepGrid | None = None

    @property
    def distinct(self) -> list[Row]:
        """Distinct images, in the order of thumbnail numbers."""
        rows = [*chain.from_iterable(self.by_gate.values()), *self.sample]
        if self.grid is not None:
            rows += self.grid.images
        return list({row["image_id"]: row for row in rows}.values())


def pick_pictures(table: ImageTable, plan: Plan) -> PictureNumbers:
    """Choose the images of the report."""
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
    """Read the manifest rows of the images of the report."""
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
