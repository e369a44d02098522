"""The pictures that a run keeps: whether each one that its images were drawn from is there, and as it was."""

import hashlib
from collections.abc import Iterator

import pyarrow as pa

from imagekiln.steps import names
from imagekiln.steps.cells import INPUT_IMAGE_COLUMNS
from imagekiln.steps.errors import Missing
from imagekiln.steps.in_order import map_ordered
from imagekiln.steps.storage import Store

INPUT_READERS = 4


def input_image_errors(store: Store, rows: pa.Table) -> Iterator[str]:
    """What is wrong with the pictures of these image rows, a sentence each. Raises TryAgain where storage fails."""
    columns = [rows[name] for name in INPUT_IMAGE_COLUMNS if name in rows.column_names]
    digests = sorted({each for column in columns for each in column.unique().to_pylist() if each is not None})
    found = map_ordered(lambda number: _input_image_error(store, digests[number]), len(digests), INPUT_READERS)
    yield from (each for each in found if each is not None)


def _input_image_error(store: Store, digest: str) -> str | None:
    key = names.input_image_key(digest)
    try:
        good = hashlib.sha256(store.read(key)).hexdigest() == digest
    except Missing:
        return f"{store.uri_of(key)}: is missing"
    return None if good else f"{store.uri_of(key)}: has other bytes than were planned"
