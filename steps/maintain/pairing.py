"""The images of two runs that belong together: of the same row, by its id or else its texts, and of the same index.

DuckDB pairs them, in bounded memory, by a hash of what they have in common.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from imagekiln.steps.errors import Incomplete, Missing
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.tables import read_columns, read_table
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

PAIRING_COLUMNS = ("id", "image_index", "prompt", "negative_prompt", "status", "pixels_sha256")
TEXT_KEY = "concat('text|', strlen(prompt), ':', prompt, negative_prompt)"
ID_KEY = f"CASE WHEN id IS NULL THEN {TEXT_KEY} ELSE concat('id|', id) END"
SHARD_STRIDE = 2**20  # more than a shard has
CREATE_IMAGES = "CREATE TABLE {run} (name UUID, number BIGINT, status VARCHAR, pixels UUID)"
INSERT_IMAGES = """
    INSERT INTO {run} SELECT CAST(substr(sha256(concat(image_index, '|', {key})), 1, 32) AS UUID), number, status,
        CAST(substr(pixels_sha256, 1, 32) AS UUID) FROM shard_rows"""
# Of rows that cannot be told apart, which differ in their seeds alone, the first one is taken.
CREATE_FIRST = (
    "CREATE TABLE {run}_first AS SELECT name, min(number) AS number FROM {run} GROUP BY name"
)
CREATE_PAIRS = """
    CREATE TABLE pairs AS
    SELECT numbers.name AS name, a, b, one.status AS was, other.status AS is_now, one.pixels = other.pixels AS same
    FROM (SELECT name, x.number AS a, y.number AS b FROM one_first x JOIN other_first y USING (name)) numbers
    JOIN one ON one.number = a JOIN other ON other.number = b"""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the two runs."""

    store: Store
    plan: Plan


@dataclass(frozen=True, slots=True)
class RowLocation:
    """Where an image's row is in its run's manifest."""

    shard: int
    row: int


@dataclass(frozen=True, slots=True)
class Pairing:
    """How many images have a counterpart, what became of them, and a fair sample of those that are ok in both.

    `alike` are images beyond the first of several that nothing but the seed tells apart: they are in no pair.
    """

    both: int
    only_first: int
    only_second: int
    indistinct: int
    pixels_equal: int
    statuses: Counter[tuple[str, str]]
    sample: tuple[tuple[RowLocation, RowLocation], ...]


def pair_images(database: Database, one: ComparedRun, other: ComparedRun, most: int) -> Pairing:
    """Pair the images of two runs, and choose up to `most` pairs. Raises Incomplete, BadInput, TryAgain."""
    # Where only one of the runs has ids, they pair nothing.
    key = ID_KEY if _has_ids(one) and _has_ids(other) else TEXT_KEY
    for run, side in (("one", one), ("other", other)):
        database.execute(CREATE_IMAGES.format(run=run))
        for table in _iter_manifests(side, PAIRING_COLUMNS):
            database.register("shard_rows", table.to_reader())
            database.execute(INSERT_IMAGES.format(run=run, key=key))
        database.execute(CREATE_FIRST.format(run=run))
    database.execute(CREATE_PAIRS)
    return _count_pairs(database, most)


def _count_pairs(database: Database, most: int) -> Pairing:
    statuses = database.fetch_table(
        "SELECT was, is_now, count(*) AS n FROM pairs GROUP BY ALL"
    ).to_pylist()
    (sums,) = database.fetch_table("""
        SELECT (SELECT count(*) FROM one_first) AS one, (SELECT count(*) FROM other_first) AS other,
            (SELECT count(*) FROM one) + (SELECT count(*) FROM other) AS images,
            (SELECT count(*) FROM pairs WHERE same) AS same""").to_pylist()
    # A name is a hash: the smallest ones are of no kind.
    chosen = database.fetch_table(
        f"SELECT a, b FROM pairs WHERE was = 'ok' AND is_now = 'ok' ORDER BY name LIMIT {most}"
    ).to_pylist()
    both = sum(each["n"] for each in statuses)
    return Pairing(
        both,
        sums["one"] - both,
        sums["other"] - both,
        sums["images"] - sums["one"] - sums["other"],
        sums["same"],
        Counter({(each["was"], each["is_now"]): each["n"] for each in statuses}),
        tuple(
            (
                RowLocation(*divmod(each["a"], SHARD_STRIDE)),
                RowLocation(*divmod(each["b"], SHARD_STRIDE)),
            )
            for each in chosen
        ),
    )


def _has_ids(side: ComparedRun) -> bool:
    return any(table["id"].null_count < table.num_rows for table in _iter_manifests(side, ("id",)))


def _iter_manifests(side: ComparedRun, columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """These columns of the manifest, shard by shard, with where each row is."""

    def numbered(number: int) -> pa.Table:
        try:
            there = read_columns(side.store, manifest_key(number), columns)
        except Missing as error:
            raise Incomplete(
                f"{side.store.uri}: has no whole manifest. Aggregate it first."
            ) from error
        places = pa.array(
            range(number * SHARD_STRIDE, number * SHARD_STRIDE + there.num_rows), pa.int64()
        )
        return there.append_column("number", places)

    yield from map_ordered(numbered, len(side.plan.shards))


def read_rows(side: ComparedRun, places: list[RowLocation]) -> list[dict[str, object]]:
    """The manifest's rows at these places, in their order."""
    wanted = sorted({place.shard for place in places})
    found: dict[RowLocation, dict[str, object]] = {}
    manifests = map_ordered(
        lambda at: read_table(side.store, manifest_key(wanted[at])), len(wanted)
    )
    for each, manifest in zip(wanted, manifests, strict=True):
        here = sorted({place.row for place in places if place.shard == each})
        for place, row in zip(here, manifest.take(pa.array(here)).to_pylist(), strict=True):
            found[RowLocation(each, place)] = row
    return [found[place] for place in places]
