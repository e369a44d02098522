"""A folder of pictures: each image is a file, with its row as JSON beside it.

The table `metadata.parquet` of the folder is written last, and makes it whole: a folder without it
is written again. Hugging Face's `imagefolder` reads the table, which has the name of each file.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePosixPath

import pyarrow as pa

from imagekiln.steps.runs.row_values import json_lines
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.storage.store import Store, create_once

WRITERS = 16
FILE_NAME_COLUMN = "file_name"


class PictureFolder:
    """A folder in a store, whose pictures are written as they are added."""

    def __init__(self, store: Store, key: str) -> None:
        """Begin without pictures, in the folder with the table of this key."""
        self._store = store
        self._key = key
        self._tables = list[pa.Table]()

    def add(self, rows: pa.Table, contents: Sequence[bytes], suffixes: Sequence[str]) -> None:
        """Write pictures, unless an interrupted export did. Raises BadInput if others are there."""
        first = sum(table.num_rows for table in self._tables)
        keys = list(picture_keys(self._key, suffixes, first))
        names = []
        json_keys = []
        for key in keys:
            path = PurePosixPath(key)
            names.append(path.name)
            json_keys.append(str(path.with_suffix(".json")))
        with ThreadPoolExecutor(WRITERS) as pool:
            create = partial(create_once, self._store)
            list(pool.map(create, keys, contents))
            list(pool.map(create, json_keys, json_lines(rows)))

        table = _readable(rows)
        table = table.add_column(0, FILE_NAME_COLUMN, pa.array(names))
        self._tables.append(table)

    def finish(self) -> bytes:
        """The bytes of the table."""
        return to_parquet(pa.concat_tables(self._tables))


def picture_keys(key: str, suffixes: Iterable[str], first: int = 0) -> Iterator[str]:
    """The keys of pictures in the folder with this table, from this one on.

    A name has the number of the folder and that of the picture, and nothing that users wrote.
    """
    folder = PurePosixPath(key).parent
    for index, suffix in enumerate(suffixes, first):
        yield f"{folder}/{folder.name}-{index:05d}{suffix}"


def _readable(rows: pa.Table) -> pa.Table:
    """The columns that `imagefolder` takes for no file.

    It opens the path in every text whose name ends in "file_name", even in a field of a struct: the
    text of a field names those within it.
    """
    fields = [field for field in rows.schema if FILE_NAME_COLUMN not in str(field)]
    names = [field.name for field in fields]
    return rows.select(names)
