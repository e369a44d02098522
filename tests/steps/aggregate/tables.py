"""Manifests of made-up images, and the table that a count makes of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from imagekiln.steps.aggregate.image_table import ImageTable, open_image_table
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.tables import (
    IMAGE_ROW_SCHEMA,
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    OUTCOME_SCHEMA,
)

SCHEMA = pa.schema([*IMAGE_ROW_SCHEMA, *OUTCOME_SCHEMA, *LOCATION_SCHEMA, *NEAR_DUPLICATE_SCHEMA])


def manifest(images: int, **columns: object) -> pa.Table:
    """The manifest of so many images that are ok, with these columns, and nulls in the others."""
    given = {
        "image_id": [f"{place:032x}" for place in range(images)],
        "input_row": range(images),
        "image_index": [0] * images,
        "prompt": [f"number {place}" for place in range(images)],
        "status": ["ok"] * images,
    } | columns
    nulls = [None] * images
    names = [*SCHEMA.names, *(name for name in columns if name not in SCHEMA.names)]
    fields = {
        name: SCHEMA.field(name) if name in SCHEMA.names else pa.field(name, pa.float32())
        for name in names
    }
    return pa.table({name: pa.array(given.get(name, nulls), fields[name].type) for name in names})


@contextmanager
def image_table(job: Job, *manifests: pa.Table) -> Iterator[ImageTable]:
    """The table of the images of these shards."""
    with open_image_table(job) as table:
        for shard in manifests:
            table.add(shard)
        yield table
