"""The images of runs that a newer run holds, or that a newer image of the same row replaces.

Neither rows nor ids of all runs fit in memory: what images are compared by is distributed over
files on this disk, and matched one range after the other. Memory keeps a bit for each image.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.dataset.runs import RunSource, no_manifest_error
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.image_id_index import (
    ID_COLUMN,
    ID_DTYPE,
    NUMBERED_ID_DTYPE,
    IdArray,
    IdBuckets,
    RecordArray,
    ids_from_hex,
)
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.manifest import read_manifest_columns
from imagekiln.steps.runs.tables import damage_error
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder

IMAGES_PER_BUCKET = 2**20
READERS = 4
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ReplacedImages:
    """Which images of some runs are left out, for images of newer ones.

    `bits` has one for each planned image, run by run. `superseded` counts those whose value in
    `column` a newer run has, `duplicates` those that a newer run holds itself.
    """

    column: str
    bits: bytes
    superseded: int
    duplicates: int

    def in_shard(self, runs: Sequence[RunSource], run: int, shard: int) -> Mask:
        """Whether each image of a shard of these runs is left out."""
        start = _run_starts(runs)[run] + sum(runs[run].shard_images[:shard])
        end = start + runs[run].shard_images[shard]
        first_byte = start // 8
        packed = np.frombuffer(self.bits, np.uint8)[first_byte : -(-end // 8)]
        flags = np.unpackbits(packed, bitorder="little")
        return flags[start - 8 * first_byte : end - 8 * first_byte].astype(np.bool_)


def find_replaced_images(runs: Sequence[RunSource], column: str) -> ReplacedImages | None:
    """Leave each image to the newest run that holds it, and each value of a column likewise.

    Of an image that is ok, nothing is left out for one that is not. Where `column` is not
    image_id, all images with a value that an image of a newer run has are superseded first. None
    where there is one run, whose images are distinct. Raises Incomplete, BadInput, TryAgain.
    """
    if len(runs) < 2:
        return None
    planned = _run_starts(runs)[-1]
    columns = list(dict.fromkeys([column, ID_COLUMN]))
    bucket_count = max(1, -(-planned // IMAGES_PER_BUCKET))
    with temporary_folder("imagekiln-newest-") as folder:
        buckets = [_open_buckets(Path(folder), name, bucket_count) for name in columns]
        for keys in _iter_shard_keys(runs, columns):
            for held, records in zip(buckets, keys, strict=True):
                held.add(records)
        is_replaced = _Bits(planned)
        counts = [_mark_older(held, is_replaced, _run_starts(runs)) for held in buckets]
    return ReplacedImages(column, is_replaced.to_bytes(), sum(counts[:-1]), counts[-1])


def _run_starts(runs: Sequence[RunSource]) -> list[int]:
    """The number of the first image of each run, and at last that of all images."""
    return list(accumulate((sum(run.shard_images) for run in runs), initial=0))


def _open_buckets(folder: Path, name: str, count: int) -> IdBuckets:
    # Names of columns are a user's: only their hash becomes a file's.
    own_folder = folder / hashlib.sha256(name.encode()).hexdigest()
    own_folder.mkdir()
    return IdBuckets(own_folder, count, NUMBERED_ID_DTYPE)


def _iter_shard_keys(
    runs: Sequence[RunSource], columns: Sequence[str]
) -> Iterator[list[RecordArray]]:
    """Of each shard, for each column, what its images that are ok are compared by."""
    starts = _run_starts(runs)
    shards = [
        (run, shard, start)
        for run, source in enumerate(runs)
        for shard, start in enumerate(accumulate(source.shard_images[:-1], initial=starts[run]))
        if source.shard_images
    ]

    def read(index: int) -> list[RecordArray]:
        run, shard, start = shards[index]
        return _read_shard_keys(runs[run], shard, start, columns)

    yield from map_ordered(read, len(shards), READERS)


def _read_shard_keys(
    run: RunSource, shard: int, start: int, columns: Sequence[str]
) -> list[RecordArray]:
    known = [name for name in columns if name in run.columns.names]
    store = open_store(run.uri)
    images = run.shard_images[shard]
    try:
        manifest = read_manifest_columns(store, shard, images, ["status", *known])
    except Missing as error:
        raise no_manifest_error(store) from error
    try:
        return [_shard_records(manifest, name, start) for name in columns]
    except ValueError as error:
        raise damage_error(store.uri_of(manifest_key(shard)), error) from error


def _shard_records(manifest: pa.Table, column: str, start: int) -> RecordArray:
    """The values in a column of the images that are ok, with the images' numbers."""
    if column not in manifest.column_names:
        return np.empty(0, NUMBERED_ID_DTYPE)
    values = manifest[column].combine_chunks()
    is_ok = pc.equal(manifest["status"].combine_chunks(), "ok")
    is_compared = pc.and_(is_ok, pc.is_valid(values))
    ids = _to_ids(column, values.filter(is_compared))
    records = np.empty(len(ids), NUMBERED_ID_DTYPE)
    records["id"] = ids
    records["number"] = start + np.flatnonzero(is_compared.to_numpy(zero_copy_only=False))
    return records


def _to_ids(column: str, values: pa.Array) -> IdArray:
    """Sixteen bytes for each value. Raises ValueError where an image_id is none."""
    if column != ID_COLUMN:
        texts = values.cast(pa.string()).cast(pa.binary()).to_pylist()
        digests = [hashlib.blake2b(text, digest_size=ID_DTYPE.itemsize).digest() for text in texts]
        return np.frombuffer(b"".join(digests), ID_DTYPE)
    ids = ids_from_hex(values)
    if len(ids) != len(values):
        raise ValueError("an image_id is not of 32 digits")
    return ids


def _mark_older(buckets: IdBuckets, is_replaced: "_Bits", run_starts: Sequence[int]) -> int:
    """Mark the images whose id an image of a newer run has, among those not marked; count them."""
    marked = 0
    for number in range(buckets.count):
        records = buckets.read(number)
        records = records[~is_replaced.of(records["number"])]
        older = _older_numbers(records, run_starts)
        is_replaced.mark(older)
        marked += len(older)
    return marked


def _older_numbers(records: RecordArray, run_starts: Sequence[int]) -> Numbers:
    """Of records sorted by id, the numbers of those whose id is in a newer run, too."""
    if not len(records):
        return np.empty(0, np.int64)
    ids = records["id"]
    is_first = np.append(True, ids[1:] != ids[:-1])
    groups = np.cumsum(is_first) - 1
    runs = np.searchsorted(run_starts, records["number"], side="right")
    newest = np.maximum.reduceat(runs, np.flatnonzero(is_first))
    older: Numbers = records["number"][runs < newest[groups]]
    return older


class _Bits:
    """A bit for each image, by its number."""

    def __init__(self, count: int) -> None:
        self._bytes = np.zeros(-(-count // 8), np.uint8)

    def of(self, numbers: Numbers) -> Mask:
        is_set: Mask = (self._bytes[numbers >> 3] >> (numbers & 7)) & 1 == 1
        return is_set

    def mark(self, numbers: Numbers) -> None:
        np.bitwise_or.at(self._bytes, numbers >> 3, (1 << (numbers & 7)).astype(np.uint8))

    def to_bytes(self) -> bytes:
        return self._bytes.tobytes()


def require_comparable(uri: str, columns: pa.Schema, name: str) -> None:
    """Raise BadInput where images cannot be compared by a column: neither text nor integers."""
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
