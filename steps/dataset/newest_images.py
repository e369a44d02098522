"""The images of runs that a newer run holds, or that a newer image of the same row replaces.

Neither rows nor ids of all runs fit in memory: DuckDB compares them in a file on this disk. Memory
keeps a bit for each image.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.dataset.runs import RunSource
from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.manifest import read_manifest
from imagekiln.steps.runs.tables import ID_COLUMN
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import Database

READERS = 4
BYTE_BITS = 8
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ReplacedImages:
    """The images of some runs that no newer run replaces.

    `bits` has one for each planned image: whether it was ok when they were compared, and is left.
    `shard_starts` says where those of each shard begin, run by run. `superseded` counts those whose
    value in `column` a newer run has, `duplicates` those that a newer run holds itself, and
    `compared` those that have a value there.
    """

    column: str
    bits: bytes
    shard_starts: tuple[tuple[int, ...], ...]
    superseded: int
    duplicates: int
    compared: int

    def in_shard(self, run: int, shard: int, images: int) -> Mask:
        """Tell which of the images of a shard are left."""
        start = self.shard_starts[run][shard]
        first_byte, first_bit = divmod(start, BYTE_BITS)
        held = np.frombuffer(self.bits, np.uint8, offset=first_byte)
        bits = np.unpackbits(
            held[: images // BYTE_BITS + 2],
            bitorder="little",
        )
        of_shard = bits[first_bit : first_bit + images]
        return of_shard.astype(np.bool_)


def find_replaced_images(runs: Sequence[RunSource], column: str) -> ReplacedImages | None:
    """Leave each image to the newest run that holds it, and each value of a column likewise.

    A failed image never hides one that is ok. If `column` is not image_id, all images with a value
    that an image of a newer run has are superseded first. None if there is one run, whose images
    are distinct. Raises Incomplete, BadInput, TryAgain.
    """
    if len(runs) < 2:
        return None
    shards = [
        (number, shard)
        for number, source in enumerate(runs)
        for shard in range(len(source.manifests))
    ]
    images = [runs[run].shard_images[shard] for run, shard in shards]
    starts = list(accumulate(images, initial=0))
    first_images = iter(starts)
    shard_starts = tuple(tuple(next(first_images) for _ in run.shard_images) for run in runs)

    def read(index: int) -> pa.Table:
        run, shard = shards[index]
        return _read_values(runs[run], run, shard, starts[index], column)

    with (
        temporary_folder("imagekiln-newest-") as folder,
        closing(Database(Path(folder), file="images.duckdb")) as database,
    ):
        database.execute("CREATE TABLE images (run INT, number BIGINT, id UUID, value VARCHAR)")
        for rows in map_ordered(read, len(shards), READERS):
            database.insert("INSERT INTO images FROM shard_rows", "shard_rows", rows)
        [(compared,)] = database.fetch_rows("SELECT count(value) FROM images")
        superseded = 0 if column == ID_COLUMN else _delete_older(database, "value")
        duplicates = _delete_older(database, "id")
        bits = _left_bits(database, starts[-1])
    return ReplacedImages(column, bits, shard_starts, superseded, duplicates, compared)


def _read_values(run: RunSource, number: int, shard: int, start: int, column: str) -> pa.Table:
    """The ids and values by which ok images of a shard are compared, with the images' numbers."""
    has_column = column in run.columns.names
    names = ["status", ID_COLUMN]
    if has_column and column != ID_COLUMN:
        names.append(column)
    store = open_store(run.uri)
    key = run.manifests[shard]
    images = run.shard_images[shard]
    manifest = read_manifest(store, key, images, names)
    values = pa.nulls(images, pa.string())
    if has_column:
        values = manifest[column].cast(pa.string())
    numbers = np.arange(start, start + images)
    columns = {
        "run": pa.repeat(number, images),
        "number": pa.array(numbers),
        "id": manifest[ID_COLUMN],
        "value": values,
    }
    is_ok = pc.equal(manifest["status"], "ok")
    return pa.table(columns).filter(is_ok)


def _delete_older(database: Database, column: str) -> int:
    """Delete the images whose value an image of a newer run has, and count them."""
    [(deleted,)] = database.fetch_rows(f"""
        DELETE FROM images USING (
            SELECT {column} AS held, max(run) AS newest FROM images GROUP BY ALL
        ) WHERE {column} = held AND run < newest
    """)
    return int(deleted)


def _left_bits(database: Database, planned: int) -> bytes:
    """A bit for each planned image, the lowest of each byte first: those of the table are set."""
    bits = np.zeros(-(-planned // BYTE_BITS), np.uint8)
    for batch in database.fetch_batches("SELECT number FROM images"):
        numbers = batch["number"].to_numpy()
        np.bitwise_or.at(
            bits, numbers // BYTE_BITS, np.uint8(1) << (numbers % BYTE_BITS).astype("u1")
        )
    return bits.tobytes()


def require_comparable(uri: str, columns: pa.Schema, name: str) -> None:
    """Raise BadInput if images cannot be compared by a column: neither text nor integers."""
    if name not in columns.names:
        raise BadInput(
            f"{uri}: has no column {name!r}. Its columns are {', '.join(columns.names)}."
        )
    kind = columns.field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
        raise BadInput(
            f"column {name!r}: is {kind}, and the newest image is found by text or integers. "
            "Choose another column, such as id."
        )
