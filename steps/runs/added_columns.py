"""The columns that a job's scores and captions add to parts and manifest, after those of all."""

from collections.abc import Sequence

import pyarrow as pa

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.passes import caption_names
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.tables import OUTCOME_SCHEMA

AddedFields = Sequence[pa.Field]


def added_fields(job: Job) -> tuple[pa.Field, ...]:
    """A column for each score, with `keep` the rank among candidates, and one for each caption."""
    fields = [pa.field(name, pa.float32()) for name in job.scores]
    if job.keep is not None:
        fields.append(pa.field(RANK_COLUMN, pa.int32()))
    captions = caption_names(job.passes)
    fields += [pa.field(name, pa.string()) for name in captions]
    return tuple(fields)


def outcome_schema(fields: AddedFields) -> pa.Schema:
    """The columns of what became of images, of which these are added."""
    return pa.schema([*OUTCOME_SCHEMA, *fields])
