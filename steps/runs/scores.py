"""The columns that a job's scores add to parts and manifest, after those of every run."""

from collections.abc import Sequence

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.tables import (
    FIELD_TYPES,
    OUTCOME_SCHEMA,
    RESERVED_COLUMNS,
    FieldTypes,
)

ScoreFields = Sequence[pa.Field]


def score_fields(job: Job) -> tuple[pa.Field, ...]:
    """A column for each score, and with `keep` the rank of an image among its candidates."""
    fields = [pa.field(name, pa.float32()) for name in job.scores]
    if job.keep is not None:
        fields.append(pa.field(RANK_COLUMN, pa.int32()))
    return tuple(fields)


def outcome_schema(fields: ScoreFields) -> pa.Schema:
    """The columns of what became of images, of which these are scores."""
    return pa.schema([*OUTCOME_SCHEMA, *fields])


def require_free_names(job: Job) -> None:
    """Raise BadInput where a score has the name of another column of the dataset."""
    for name in job.scores:
        if name in RESERVED_COLUMNS:
            raise BadInput(f"scores: {name} is a column of the dataset itself. Rename the score.")


def types_with_scores(fields: ScoreFields) -> FieldTypes:
    """The types of columns with reserved names, those of scores among them."""
    types = dict(FIELD_TYPES)
    for field in fields:
        types[field.name] = field.type
    return types
