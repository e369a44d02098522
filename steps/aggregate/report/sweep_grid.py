"""The images of a sweep as a grid: prompts down, settings across, as far as a page can show them.

Where several settings vary, the last is across, and each prompt has a line for each combination
of the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.reconcile import ReconciledShard
from imagekiln.steps.aggregate.report.contact_sheet import MAX_TEXT_CHARS, Sample, to_samples
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.image import OUTSCORED_STATUS, describe_setting
from imagekiln.steps.runtime.figures import format_count, pluralize
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_VALUES = 12  # across, and as many lines of a prompt
MAX_CELLS = 240
MAX_PROMPTS = 40
NOT_MADE = "not in this run"
SweepValue: TypeAlias = int | float | str
SweepSettings: TypeAlias = Mapping[str, tuple[SweepValue, ...]]


@dataclass(frozen=True, slots=True)
class GridPrompt:
    """A prompt with its images, line by line; in the place of an image that is not ok, why."""

    prompt: str
    cells: tuple[Sample | str, ...]


@dataclass(frozen=True, slots=True)
class SweepGrid:
    """The headings of the columns and of the lines of each prompt, the prompts, and a note on them.

    Where only one setting varies, the one line of each prompt has an empty heading.
    """

    columns: tuple[str, ...]
    lines: tuple[str, ...]
    prompts: tuple[GridPrompt, ...]
    note: str

    @property
    def samples(self) -> list[Sample]:
        """The images that are shown."""
        cells = [cell for prompt in self.prompts for cell in prompt.cells]
        return [cell for cell in cells if isinstance(cell, Sample)]


def swept_settings(job: Job) -> SweepSettings:
    """The settings with several values in the job's sweep, if it has one."""
    return {name: values for name, values in job.swept.items() if len(values) > 1}


class SweepSheet:
    """Collects the images of the first prompts of a sweep that have any in the run.

    Of rows with several images, the first is shown; the best one of the first candidates.
    """

    def __init__(self, settings: SweepSettings, candidates: int = 1) -> None:
        """Take the settings that vary; without any, there is no grid."""
        self._settings = settings
        self._candidates = candidates
        widths = [1, *map(len, settings.values())]
        self._cells = prod(widths)
        self._width = widths[-1]
        self._columns = min(MAX_VALUES, self._width)
        all_lines = self._cells // self._width
        self._lines = min(MAX_VALUES, all_lines)
        fitting = MAX_CELLS // (self._columns * self._lines)
        self._prompts = min(MAX_PROMPTS, fitting)
        self._rows: pa.Table | None = None

    def add(self, shard: ReconciledShard) -> None:
        """Take over what is shown of one shard."""
        if not self._settings:
            return
        rows = shard.manifest
        cells = self._row_numbers(rows) % self._cells
        lines, columns = np.divmod(cells, self._width)
        is_first = rows["image_index"].to_numpy() < self._candidates
        if RANK_COLUMN in rows.column_names:
            is_first &= _may_win(rows)
        is_in_lines = lines < self._lines
        is_in_columns = columns < self._columns
        is_shown = is_first & is_in_lines & is_in_columns
        rows = rows.filter(pa.array(is_shown))
        if self._rows is not None:
            rows = pa.concat_tables([self._rows, rows])
        prompts = self._row_numbers(rows) // self._cells
        distinct = np.unique(prompts)
        lowest = distinct[: self._prompts]
        is_of_lowest = np.isin(prompts, lowest)
        self._rows = rows.filter(pa.array(is_of_lowest))

    def build(self, input_rows: int) -> SweepGrid | None:
        """The grid of a run on so many input rows; None if there is nothing to show."""
        if self._rows is None or not self._rows.num_rows:
            return None
        cells: dict[int, Sample | str] = {}
        texts: dict[int, str] = {}
        columns = self._rows.select(["input_row", "status", "prompt"])
        for row in columns.to_pylist():
            input_row = row["input_row"]
            cells[input_row] = row["status"]
            prompt = input_row // self._cells
            text = truncate_text(row["prompt"], MAX_TEXT_CHARS)
            texts[prompt] = text
        statuses = self._rows["status"]
        is_ok = pc.equal(statuses, "ok")
        ok_rows = self._rows.filter(is_ok)
        for sample in to_samples(ok_rows):
            cells[sample.input_row] = sample
        places = self._places()
        prompts = []
        for prompt in sorted(texts):
            first_row = prompt * self._cells
            shown = [cells.get(first_row + place, NOT_MADE) for place in places]
            text = texts[prompt]
            grid_prompt = GridPrompt(text, tuple(shown))
            prompts.append(grid_prompt)
        return self._make_grid(prompts, input_rows // self._cells)

    def _places(self) -> list[int]:
        """The places of the images that are shown, among all of a prompt, line by line."""
        places: list[int] = []
        for line in range(self._lines):
            first = line * self._width
            places.extend(range(first, first + self._columns))
        return places

    def _make_grid(self, prompts: list[GridPrompt], all_prompts: int) -> SweepGrid:
        *down, across = self._settings
        values_across = self._settings[across][: self._columns]
        columns = [describe_setting(across, value) for value in values_across]
        values_down = [self._settings[name] for name in down]
        combinations = product(*values_down)
        lines = []
        for values in islice(combinations, self._lines):
            settings = map(describe_setting, down, values)
            lines.append(", ".join(settings))
        note = pluralize(all_prompts, "prompt")
        if len(prompts) < all_prompts:
            note = f"{len(prompts)} of {note}, the first that have images in this run"
        if self._columns < self._width:
            note += f", {self._columns} of {self._width} values of {across}"
        all_lines = self._cells // self._width
        if self._lines < all_lines:
            names = " and ".join(down)
            note += f", {self._lines} of {format_count(all_lines)} combinations of {names}"
        return SweepGrid(
            tuple(columns),
            tuple(lines),
            tuple(prompts),
            f"{note}.",
        )

    def _row_numbers(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        numbers: npt.NDArray[np.int64] = rows["input_row"].to_numpy()
        return numbers


def _may_win(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """True for images that are the best candidates, or not ranked below another."""
    is_outscored = pc.equal(rows["status"], OUTSCORED_STATUS)
    is_lower = pc.greater(rows[RANK_COLUMN], 1)
    has_lost = pc.fill_null(is_lower, False)
    has_better = pc.or_(is_outscored, has_lost)
    has_no_better: npt.NDArray[np.bool_] = ~has_better.to_numpy()
    return has_no_better
