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
BYTE_BITS = 8
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ReplacedImages:
    """Which images of some runs are left, and not left out for images of newer ones.

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
        """Whether each of so many images, which are those of a shard, is left."""
        start = self.shard_starts[run][shard]
        numbers = np.arange(start, start + images)
        bits = np.frombuffer(self.bits, np.uint8)
        return _Bits(bits).of(numbers)


def find_replaced_images(runs: Sequence[RunSource], column: str) -> ReplacedImages | None:
    """Leave each image to the newest run that holds it, and each value of a column likewise.

    Of an image that is ok, nothing is left out for one that is not. Where `column` is not
    image_id, all images with a value that an image of a newer run has are superseded first. None
    where there is one run, whose images are distinct. Raises Incomplete, BadInput, TryAgain.
    """
    if len(runs) < 2:
        return None
    run_starts = _run_starts(runs)
    shard_starts = tuple(map(_shard_starts, runs, run_starts))
    planned = run_starts[-1]
    columns = list(dict.fromkeys([column, ID_COLUMN]))
    bucket_count = max(1, -(-planned // IMAGES_PER_BUCKET))
    with temporary_folder("imagekiln-newest-") as folder:
        buckets = [
            IdBuckets(Path(folder, str(number)), bucket_count, NUMBERED_ID_DTYPE)
            for number in range(len(columns))
        ]
        is_left = _Bits.none_of(planned)
        compared = 0
        for keys in _iter_shard_keys(runs, shard_starts, columns):
            for held, records in zip(buckets, keys, strict=True):
                held.add(records)
            compared += len(keys[0])
            is_left.mark(keys[-1]["number"])  # by image_id, which every image has
        counts = [_clear_older(held, is_left, run_starts) for held in buckets]
    *superseded, duplicates = counts
    return ReplacedImages(
        column,
        is_left.to_bytes(),
        shard_starts,
        sum(superseded),
        duplicates,
        compared,
    )


def _run_starts(runs: Sequence[RunSource]) -> list[int]:
    """The number of the first image of each run, and at last that of all images."""
    images = [sum(run.shard_images) for run in runs]
    return list(accumulate(images, initial=0))


def _shard_starts(run: RunSource, first_image: int) -> tuple[int, ...]:
    """The number of the first image of each shard of a run."""
    ends = accumulate(run.shard_images, initial=first_image)
    return tuple(ends)[:-1]


def _iter_shard_keys(
    runs: Sequence[RunSource], shard_starts: Sequence[Sequence[int]], columns: Sequence[str]
) -> Iterator[list[RecordArray]]:
    """Of each shard, for each column, what its images that are ok are compared by."""
    shards = [
        (run, shard, start)
        for run, starts in zip(runs, shard_starts, strict=True)
        for shard, start in enumerate(starts)
    ]

    def read(index: int) -> list[RecordArray]:
        run, shard, start = shards[index]
        return _read_shard_keys(run, shard, start, columns)

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
    status = manifest["status"].combine_chunks()
    is_compared = pc.and_(
        pc.equal(status, "ok"),
        pc.is_valid(values),
    )
    places = pc.indices_nonzero(is_compared)
    ids = _to_ids(column, values.take(places))

    records = np.empty(len(ids), NUMBERED_ID_DTYPE)
    records["id"] = ids
    records["number"] = places.to_numpy()
    records["number"] += start
    return records


def _to_ids(column: str, values: pa.Array) -> IdArray:
    """Sixteen bytes for each value. Raises ValueError where an image_id is none."""
    if column != ID_COLUMN:
        return _hash_texts(values.cast(pa.string()))
    ids = ids_from_hex(values)
    if len(ids) != len(values):
        raise ValueError("an image_id is not of 32 digits")
    return ids


def _hash_texts(values: pa.Array) -> IdArray:
    content = bytearray()
    texts = values.cast(pa.binary())
    for text in texts.to_pylist():
        digest = hashlib.blake2b(text, digest_size=ID_DTYPE.itemsize)
        content += digest.digest()
    return np.frombuffer(content, ID_DTYPE)


def _clear_older(buckets: IdBuckets, is_left: "_Bits", run_starts: Sequence[int]) -> int:
    """Clear the images whose id an image of a newer run has, among those left; count them."""
    cleared = 0
    for number in range(buckets.count):
        records = buckets.read(number)
        left = records[is_left.of(records["number"])]
        older = _older_numbers(left, run_starts)
        is_left.clear(older)
        cleared += len(older)
    return cleared


def _older_numbers(records: RecordArray, run_starts: Sequence[int]) -> Numbers:
    """Of records sorted by id, the numbers of those whose id is in a newer run, too."""
    numbers: Numbers = records["number"]
    if not len(numbers):
        return numbers
    ids = records["id"]
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = ids[1:] != ids[:-1]
    firsts = np.flatnonzero(is_first)
    groups = np.cumsum(is_first) - 1

    runs = np.searchsorted(run_starts, numbers, side="right")
    newest = np.maximum.reduceat(runs, firsts)
    older: Numbers = numbers[runs < newest[groups]]
    return older


class _Bits:
    """A bit for each image, by its number."""

    def __init__(self, held: npt.NDArray[np.uint8]) -> None:
        self._bytes = held

    @classmethod
    def none_of(cls, count: int) -> "_Bits":
        """The bits of so many images, none of which is marked."""
        size = -(-count // BYTE_BITS)
        return cls(np.zeros(size, np.uint8))

    def of(self, numbers: Numbers) -> Mask:
        """Whether each of these images is marked."""
        places = numbers // BYTE_BITS
        marked = self._bytes[places] & _bit_values(numbers)
        return marked.astype(np.bool_)

    def mark(self, numbers: Numbers) -> None:
        """Mark these images."""
        places = numbers // BYTE_BITS
        np.bitwise_or.at(self._bytes, places, _bit_values(numbers))

    def clear(self, numbers: Numbers) -> None:
        """Mark these images no longer."""
        places = numbers // BYTE_BITS
        np.bitwise_and.at(self._bytes, places, ~_bit_values(numbers))

    def to_bytes(self) -> bytes:
        """All bits, the lowest of each byte first."""
        return self._bytes.tobytes()


def _bit_values(numbers: Numbers) -> npt.NDArray[np.uint8]:
    """What the bit of each image counts in its byte."""
    bits = (numbers % BYTE_BITS).astype(np.uint8)
    return np.left_shift(np.uint8(1), bits)


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
