"""Which columns of a table are ours, by their names and their values: what a first job says.

A column may have the name of one of ours and hold something else. Then it is left unread.
"""

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.execution import JobLimits
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.plan.columns import (
    OUR_NAMES,
    find_spellings,
    fold_name,
    is_text,
    plain_array,
    read_texts,
)
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.input_files import InputFile, iter_file_columns, read_source
from imagekiln.steps.plan.input_formats import convert_sources
from imagekiln.steps.plan.source_files import expand_pattern, gather_sources
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.uri import is_remote_uri

MAX_FAULTY_SHARE = 0.1  # of the cells of a column that is read: planning names the others
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

    `reasons` say why, or why rows may be rejected. `others` are the columns that are not read.
    """

    columns: dict[str, str | None]
    reasons: tuple[str, ...]
    others: tuple[str, ...]


def survey_tables(pattern: str) -> TableSurvey | None:
    """Look at the columns of prompts; None if there are none, or they are remote.

    Raises BadInput if they cannot be read, TryAgain.
    """
    if is_remote_uri(pattern) or not expand_pattern(pattern):
        return None
    with temporary_folder("imagekiln-survey-") as folder:
        scratch = Path(folder)
        sources = convert_sources(gather_sources((pattern,), scratch), scratch)
        return _Survey([*map(read_source, sources)], scratch).describe()


class _Survey:
    """The columns of files with their types, and which of them all files have."""

    def __init__(self, files: list[tuple[InputFile, pa.Schema]], scratch: Path) -> None:
        self._scratch = scratch
        self._files = [
            (file, {field.name for field in schema if schema.names.count(field.name) == 1})
            for file, schema in files
        ]
        self._types = {field.name: field.type for _, schema in reversed(files) for field in schema}
        names = files[0][1].names
        self._shared = [name for name in names if all(name in own for _, own in self._files)]

    def describe(self) -> TableSurvey:
        """Choose the prompts, the ids and the settings, in this order."""
        columns: dict[str, str | None] = {}
        reasons: list[str] = []
        ratings = {name: self._rate_prompts(name) for name in self._shared}
        rated = {name: rating for name, rating in ratings.items() if rating is not None}
        by_name = [*find_spellings(self._shared, "prompt"), None]
        prompt = max(rated, key=rated.__getitem__) if rated else by_name[0]
        if prompt is not None:
            columns["prompt"] = prompt
        free = [name for name in self._types if name != prompt]
        for ours in OUR_NAMES[1:]:
            likely = find_spellings(free, ours)
            by_ending = [*filter(ID_NAME.search, free)] if ours == "id" else []
            fitting = None
            faults: dict[str, str] = {}
            for name in dict.fromkeys((*likely, *by_ending)):
                is_read, faults[name] = self._find_faults(ours, name)
                if is_read:
                    fitting = name
                    faults = {name: faults[name]}
                    break  # each try plans the whole column
            if fitting in self._shared:
                columns[ours] = fitting
            elif likely and fitting is None:
                columns[ours] = None
            reasons += filter(None, faults.values())
        others = tuple(name for name in self._shared if name not in columns.values())
        return TableSurvey(columns, tuple(reasons), others)

    def _rate_prompts(self, name: str) -> tuple[float, ...] | None:
        """How likely a column is that of the prompts, first by its name; None if it is not."""
        folded = fold_name(name)
        if "negative" in folded or ID_NAME.search(name) or not is_text(self._types[name]):
            return None
        hints = (
            bool(find_spellings([name], "prompt")),
            "prompt" in folded,
            any(hint in folded for hint in HINTS),
        )
        first = [array for array in self._read(name, 1) if is_text(array.type)][:1]
        cells = [read_texts(array[:SAMPLE_ROWS], name).values.to_pylist() for array in first]
        texts = [*filter(None, chain(*cells))]
        is_varied = any(hints) or len(set(texts)) >= MIN_DISTINCT_SHARE * len(texts)
        if not texts or not is_varied or not _are_prompts(texts):
            return None
        return (*hints, sum(map(len, texts)) / len(texts))

    def _find_faults(self, ours: str, theirs: str) -> tuple[bool, str]:
        """Whether a column is read, and why planning would reject rows for it if it were alone."""
        path = self._scratch / "column.parquet"
        no_value = pa.nulls(1, self._types[theirs])  # of a row that is never rejected
        unread = f"{theirs!r} is left unread"
        try:
            values = pa.chunked_array([*self._read(theirs, MAX_ROWS), no_value])
            rows = pa.array(range(len(values)))  # as seeds, so that rows with the same id differ
            columns = {"prompt": pa.repeat("a", len(rows)), "seed": rows, ours: values}
            pq.write_table(pa.table(columns), path)
        except pa.ArrowException:
            return False, f"{unread}: has values of other types, or of different ones"
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
            return False, f"{unread}: {str(error).removeprefix(f'{path}: ')}"
        if not result.rejected_rows:
            return True, ""
        causes = result.rejection_causes
        clauses = "; ".join(f"{each.reason} ({pluralize(each.rows, 'row')})" for each in causes)
        if result.rejected_rows > MAX_FAULTY_SHARE * (len(values) - values.null_count):
            return False, f"{unread}: {clauses}"
        return True, f"{theirs!r} is read, though some rows may be rejected: {clauses}"

    def _read(self, name: str, most: int) -> list[pa.Array]:
        """The cells of a column in all files, of at least so many rows if there are."""
        arrays: list[pa.Array] = []
        for file, names in self._files:
            for batch in iter_file_columns(file, [name]) if name in names else ():
                arrays.append(plain_array(batch.column(name)))
                if sum(map(len, arrays)) >= most:
                    return arrays
        return arrays


def _are_prompts(texts: list[str]) -> bool:
    """Whether texts are of several words, and no places or data."""
    places = sum(1 for text in texts if PLACE_OR_DATA.match(text))
    words = sum(len(text.split()) for text in texts) / len(texts)
    has_spaces = all(map(str.isascii, texts))  # unlike Chinese
    chars = sum(map(len, texts)) / len(texts)
    is_prose = words >= MIN_WORDS or (not has_spaces and chars >= MIN_CHARS)
    return is_prose and places < len(texts) / 2
