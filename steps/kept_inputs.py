"""The pictures that a run keeps: whether each one that its images were drawn from is there, and as it was."""

import hashlib
from collections.abc import Iterator

import pyarrow as pa

from imagekiln.steps import names
from imagekiln.steps.cells import PICTURES
from imagekiln.steps.errors import Missing
from imagekiln.steps.in_order import in_order
from imagekiln.steps.storage import Store

READERS = 4


def problems(store: Store, rows: pa.Table) -> Iterator[str]:
    """What is wrong with the pictures of these image rows, a sentence each. Raises TryAgain where storage fails."""
    columns = [rows[name] for name in PICTURES if name in rows.column_names]
    digests = sorted({each for column in columns for each in column.unique().to_pylist() if each is not None})
    found = in_order(lambda number: _problem(store, digests[number]), len(digests), READERS)
    yield from (each for each in found if each is not None)


def _problem(store: Store, digest: str) -> str | None:
    key = names.input_picture(digest)
    try:
        good = hashlib.sha256(store.read(key)).hexdigest() == digest
    except Missing:
        return f"{store.at(key)}: is missing"
    return None if good else f"{store.at(key)}: has other bytes than were planned"
