"""Exports that are brought up to date by a command that changed runs."""

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.export.commits import read_file_rows, require_export
from imagekiln.steps.export.step import export
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store


def count_exported(store: Store, image_ids: pa.Array) -> int:
    """How many of the images with these ids an export has."""
    count = 0
    for file in require_export(store).commit.files:
        ids = read_file_rows(store, file)["image_id"]
        count += pc.sum(pc.is_in(ids, image_ids)).as_py()
    return count


def export_again(uri: str, destination: str) -> None:
    """Run the command again that made an export of the run or the output at `uri`, or beside it.

    Raises as `export`.
    """
    commit = require_export(open_store(destination)).commit
    store = open_store(uri)
    source = uri
    if commit.is_run and not store.exists(PLAN_KEY):
        source = f"{store.uri}/{commit.runs[0].run_id}"
    elif not commit.is_run and store.exists(PLAN_KEY):
        source = store.uri.rpartition("/")[0] or "."
    export(source, destination, commit.settings)
