"""Which columns of a table are ours, by their names and their values: what a first job says.

A column may have the name of one of ours and hold something else. Then it is left unread.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.execution import JobLimits
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.plan.column_names import OUR_NAMES, find_spellings, fold_name
from imagekiln.steps.plan.column_readers import plain_array, read_texts
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.input_files import InputFile, iter_file_columns, read_source
from imagekiln.steps.plan.input_formats import convert_sources
from imagekiln.steps.plan.source_files import expand_pattern, gather_sources
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.local import temporary_folder

MAX_REJECTED_SHARE = JobLimits().rejected_share / 2  # for one column: another may add as many
MAX_ROWS = 1_000_000  # that are looked at
SAMPLE_ROWS = 2000  # by which the prompts are found
MIN_DISTINCT_SHARE = 0.1  # of prompts whose column's name says nothing
MIN_WORDS = 2.0  # of a prompt, on average; of languages without spaces, characters
MIN_CHARS = 8.0
ID_NAME = re.compile(r"(^|[\W_])(id|uid|uuid|guid)$|(?<=[a-z])I[dD]$", re.IGNORECASE)
PLACE_OR_DATA = re.compile(r"\s*([a-z0-9]+://|[{\[]|[\w./\\-]+\.\w{2,5}\s*$)", re.IGNORECASE)
HINTS = ("caption", "text", "description")


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """What a job should say of a table's columns: their names by ours, None for one left unread.

    `reasons` say why. `others` are the columns that are not read.
    """

    columns: dict[str, str | None]
    reasons: tuple[str, ...]
    others: tuple[str, ...]


def survey_tables(pattern: str) -> TableSurvey | None:
    """Look at the columns of local prompts; None if there are none. Raises BadInput, TryAgain."""
    if not expand_pattern(pattern):
        return None
    with temporary_folder("imagekiln-survey-") as folder:
        scratch = Path(folder)
        sources = convert_sources(gather_sources((pattern,), scratch), scratch)
        return _Survey([*map(read_source, sources)], scratch).describe()


class _Survey:
    """The columns of files with their types, and which of them all files have."""

    def __init__(self, files: list[tuple[InputFile, pa.Schema]], scratch: Path) -> None:
        self._files = files
        self._scratch = scratch
        names = [
            {name for name in schema.names if schema.names.count(name) == 1} for _, schema in files
        ]
        self._types = {field.name: field.type for _, schema in reversed(files) for field in schema}
        self._shared = [name for name in files[0][1].names if all(name in own for own in names)]

    def describe(self) -> TableSurvey:
        """Choose the prompts, the ids and the settings, in this order."""
        columns: dict[str, str | None] = {}
        reasons = []
        prompt = self._choose_prompts()
        if prompt is not None:
            columns["prompt"] = prompt
        free = [name for name in self._types if name != prompt]
        for ours in OUR_NAMES[1:]:
            likely = find_spellings(free, ours)
            by_ending = [*filter(ID_NAME.search, free)] if ours == "id" else []
            faults = {name: self._find_fault(ours, name) for name in (*likely, *by_ending)}
            fitting = [name for name, fault in faults.items() if fault is None]
            if fitting and fitting[0] in self._shared:
                columns[ours] = fitting[0]
            elif likely and not fitting:
                columns[ours] = None
                reasons.append(f"{likely[0]!r} is left unread: {faults[likely[0]]}")
        others = tuple(name for name in self._shared if name not in columns.values())
        return TableSurvey(columns, tuple(reasons), others)

    def _choose_prompts(self) -> str | None:
        """The column of texts of several words, mostly different, best with a name that says so."""
        ranked = []
        for name in self._shared:
            kind = self._types[name]
            rank = _rank_prompt_name(name)
            if rank < 0 or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                continue
            first = next(self._iter_arrays(name), pa.array([], kind)).slice(0, SAMPLE_ROWS)
            texts = [*filter(None, read_texts(first, name).values.to_pylist())]
            is_varied = rank > 0 or len(set(texts)) >= MIN_DISTINCT_SHARE * len(texts)
            if texts and is_varied and _are_prompts(texts):
                ranked.append((rank, sum(map(len, texts)) / len(texts), name))
        by_name = find_spellings(self._shared, "prompt")
        return max(ranked)[-1] if ranked else next(iter(by_name), None)

    def _find_fault(self, ours: str, theirs: str) -> str | None:
        """Why planning would reject rows for a column, if it were the only one; None if it fits."""
        path = self._scratch / "column.parquet"
        no_value = pa.nulls(1, self._types[theirs])  # of a row that is never rejected
        try:
            values = pa.chunked_array([*self._iter_arrays(theirs), no_value])
            rows = pa.array(range(len(values)))  # as seeds, so that rows with the same id differ
            columns = {"prompt": pa.repeat("a", len(rows)), "seed": rows, ours: values}
            pq.write_table(pa.table(columns), path)
        except pa.ArrowException:
            return "has values of other types, or of different ones"
        job = Job(
            name="survey",
            prompts=str(path),
            output=str(self._scratch / "out"),
            model=ModelSettings(id="bundled:shapes"),
            limits=JobLimits(rejected_share=1),
        )
        try:
            result = estimate(job)
        except BadInput as error:
            return str(error).removeprefix(f"{path}: ")
        if result.rejected_rows <= MAX_REJECTED_SHARE * result.rows:
            return None
        return f"{result.rejection_causes[0].reason} ({pluralize(result.rejected_rows, 'row')})"

    def _iter_arrays(self, name: str) -> Iterator[pa.Array]:
        """The cells of a column, of as many rows as are looked at."""
        rows = 0
        for file, schema in self._files:
            if schema.names.count(name) != 1:
                continue
            for batch in iter_file_columns(file, [name]):
                yield plain_array(batch.column(name))
                rows += batch.num_rows
                if rows >= MAX_ROWS:
                    return


def _rank_prompt_name(name: str) -> int:
    """How much a name says of prompts; under 0 that it holds something else."""
    folded = fold_name(name)
    if "negative" in folded or ID_NAME.search(name):
        return -1
    if find_spellings([name], "prompt"):
        return 3
    return 2 if "prompt" in folded else int(any(hint in folded for hint in HINTS))


def _are_prompts(texts: list[str]) -> bool:
    """Whether texts are of several words, and no places or data."""
    places = sum(1 for text in texts if PLACE_OR_DATA.match(text))
    words = sum(len(text.split()) for text in texts) / len(texts)
    has_spaces = all(map(str.isascii, texts))  # unlike Chinese
    chars = sum(map(len, texts)) / len(texts)
    is_prose = words >= MIN_WORDS or (not has_spaces and chars >= MIN_CHARS)
    return is_prose and places < len(texts) / 2
