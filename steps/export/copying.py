"""Copying the images of one file: read by ranges, compared with their hashes, written whole."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from imagekiln.steps.dataset.image_ranges import read_images
from imagekiln.steps.errors import BadInput, StorageRefused
from imagekiln.steps.export.image_files import open_image_file
from imagekiln.steps.export.plan import ExportPlan, read_file_rows
from imagekiln.steps.runs.forgotten import read_forgotten_ids
from imagekiln.steps.runs.tables import LOCATION_SCHEMA
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

BATCH_BYTES = 2**25
BATCH_ROWS = 4096
BATCHES_AT_ONCE = 2
IMAGE_READERS = 8
RUN_READERS = 16


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Where the images of an export come from: the folder of the output, or of its only run."""

    store: Store
    plan: ExportPlan

    def locate(self, rows: pa.Table) -> pa.Table:
        """The rows, with the keys of their objects in the source. Raises BadInput."""
        parts = rows["part"].to_pylist()
        keys = list(map(self._key_of, parts))
        index = rows.schema.get_field_index("part")
        return rows.set_column(index, "part", pa.array(keys))

    def read_forgotten(self) -> dict[str, frozenset[str]]:
        """The ids of the images that were taken down from each run of the plan, by its id."""
        run_ids = [run.run_id for run in self.plan.runs]

        def read(index: int) -> frozenset[str]:
            uri = self.store.uri
            folder = uri if self.plan.is_run else f"{uri}/{run_ids[index]}"
            return frozenset(read_forgotten_ids(open_store(folder)).to_pylist())

        ids = map_ordered(read, len(run_ids), RUN_READERS)
        return dict(zip(run_ids, ids, strict=True))

    def suffixes(self, rows: pa.Table) -> list[str]:
        """The suffix of each image's file."""
        suffixes = {run.run_id: run.suffix for run in self.plan.runs}
        parts = rows["part"].to_pylist()
        run_ids = [part.partition("/")[0] for part in parts]
        return [suffixes[run_id] for run_id in run_ids]

    def _key_of(self, part: str) -> str:
        if not self.plan.is_run:
            return part
        _, _, key = part.partition("/")
        return key


def make_file(source: ExportSource, store: Store, number: int) -> bytes:
    """The bytes of one file of the export in `store`.

    Raises BadInput where an image is damaged, Missing where an object is gone, TryAgain.
    """
    plan = source.plan
    rows = read_file_rows(store, plan, number)
    pieces = list(cut_pieces(rows))
    columns = file_columns(plan, rows)
    file = open_image_file(plan.settings.format, rows.select(columns).schema)
    with ThreadPoolExecutor(IMAGE_READERS) as pool:

        def read(index: int) -> list[bytes]:
            located = source.locate(pieces[index])
            return read_images(source.store, located, pool)

        contents = map_ordered(read, len(pieces), BATCHES_AT_ONCE)
        for piece, images in zip(pieces, _explain_damage(contents), strict=True):
            file.add(
                piece.select(columns),
                images,
                source.suffixes(piece),
            )
    return file.finish()


def file_columns(plan: ExportPlan, rows: pa.Table) -> list[str]:
    """The columns of a file with these rows, besides its images."""
    left_out: set[str | None] = set(LOCATION_SCHEMA.names)
    if plan.settings.format == "parquet":
        left_out.add(plan.settings.partition_by)  # readers take it from the folder's name
    return [name for name in rows.column_names if name not in left_out]


def cut_pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in pieces whose images fit in memory several times."""
    sizes = rows["byte_size"].to_pylist()
    start = 0
    size = 0
    for index, image_size in enumerate(sizes):
        is_full = size + image_size > BATCH_BYTES or index - start == BATCH_ROWS
        if is_full and index > start:
            yield rows.slice(start, index - start)
            start = index
            size = 0
        size += image_size
    yield rows.slice(start)


def _explain_damage(contents: Iterator[list[bytes]]) -> Iterator[Sequence[bytes]]:
    try:
        yield from contents
    except StorageRefused:
        raise
    except BadInput as error:
        raise type(error)(
            *error.args,
            "Then run the same command again. An image that was generated anew may have other "
            "bytes: then export to another destination.",
        ) from error
