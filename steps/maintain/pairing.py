"""Pairs the images of two runs: those of the same row, by its id or its texts, and the same index.

Of candidates that compete for one place, only the best counts, whatever its own index.
DuckDB pairs them, in bounded memory, by a hash of what they have in common.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runs.run import Run, read_shard_columns, read_shard_manifest
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.scratch import Database

ManifestRow = dict[str, object]

PAIRING_COLUMNS = ("id", "image_index", "prompt", "negative_prompt", "status", "pixels_sha256")
SHARD_STRIDE = 2**20  # more rows than a shard has
TEXT_KEY = "concat('text|', strlen(prompt), ':', prompt, negative_prompt)"
ID_KEY = f"CASE WHEN id IS NULL THEN {TEXT_KEY} ELSE concat('id|', id) END"
CREATE_IMAGES = "CREATE TABLE {run} (name UUID, number BIGINT, status VARCHAR, pixels UUID)"
INSERT_IMAGES = """
    INSERT INTO {run}
    SELECT
        CAST(substr(sha256(concat(image_index // {candidates}, '|', {key})), 1, 32) AS UUID),
        number,
        status,
        CAST(substr(pixels_sha256, 1, 32) AS UUID)
    FROM shard_rows"""
# Candidates are neighbors. Where none has won, as when all failed, the first one stands for them.
BEST_CANDIDATES = """
    QUALIFY row_number() OVER (
        PARTITION BY number - image_index % {candidates}
        ORDER BY status = 'outscored', candidate_rank, number) = 1"""
# Of rows with one name, as of a sweep, the first ones are a pair, the second ones, and so on.
NUMBER_ROWS = """
    SELECT *, row_number() OVER (PARTITION BY name ORDER BY number) AS place FROM {run}"""
CREATE_PAIRS = f"""
    CREATE TABLE pairs AS
    SELECT
        name,
        one.number AS first_number,
        other.number AS second_number,
        one.status AS first_status,
        other.status AS second_status,
        one.pixels = other.pixels AS pixels_equal
    FROM ({NUMBER_ROWS.format(run="first_run")}) one
    JOIN ({NUMBER_ROWS.format(run="second_run")}) other USING (name, place)"""
COUNT_STATUSES = """
    SELECT first_status, second_status, count(*) AS images FROM pairs GROUP BY ALL"""
COUNT_IMAGES = """
    SELECT
        (SELECT count(*) FROM first_run) AS first,
        (SELECT count(*) FROM second_run) AS second,
        (SELECT count(*) FROM pairs WHERE pixels_equal) AS pixels_equal"""
# By a hash, so that the smallest ones are a random sample.
SAMPLE_PAIRS = """
    SELECT first_number, second_number
    FROM pairs
    WHERE first_status = 'ok' AND second_status = 'ok'
    ORDER BY md5(concat(name, first_number))
    LIMIT {limit}"""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Counts of images with a counterpart, by status, and a random sample of those ok in both.

    The sample has the images' numbers in both runs, by which `read_manifest_rows` finds them.
    """

    both: int
    only_first: int
    only_second: int
    pixels_equal: int
    statuses: Counter[tuple[str, str]]
    sample: list[tuple[int, int]]


def pair_images(database: Database, first: Run, second: Run, sample_size: int) -> Pairing:
    """Pair the images of two runs and sample the pairs.

    Raises Incomplete if a run was not aggregated, BadInput on damage, TryAgain.
    """
    # Where only one of the runs has ids, no id would find its counterpart.
    key = ID_KEY if _has_ids(first) and _has_ids(second) else TEXT_KEY
    _load_images(database, "first_run", first, key)
    _load_images(database, "second_run", second, key)
    database.execute(CREATE_PAIRS)
    return _count_pairs(database, sample_size)


def read_manifest_rows(run: Run, numbers: Sequence[int]) -> list[ManifestRow]:
    """The manifest's rows of these numbers in a run, in their order."""
    by_shard: defaultdict[int, list[int]] = defaultdict(list)
    for number in sorted(numbers):
        by_shard[number // SHARD_STRIDE].append(number)
    shards = list(by_shard)

    def read(index: int) -> list[ManifestRow]:
        shard = shards[index]
        places = [number % SHARD_STRIDE for number in by_shard[shard]]
        manifest = read_shard_manifest(run, shard)
        rows = manifest.take(pa.array(places))
        return to_rows(rows)

    tables = map_ordered(read, len(shards))
    rows = chain.from_iterable(tables)
    by_number = dict(zip(sorted(numbers), rows, strict=True))
    return [by_number[number] for number in numbers]


def _has_ids(run: Run) -> bool:
    manifests = _iter_manifests(run, ("id",))
    return any(manifest["id"].null_count < manifest.num_rows for manifest in manifests)


def _load_images(database: Database, table: str, run: Run, key: str) -> None:
    database.execute(CREATE_IMAGES.format(run=table))
    candidates = run.plan.job.candidates
    columns: tuple[str, ...] = PAIRING_COLUMNS
    insert_images = INSERT_IMAGES
    if candidates > 1:
        columns += (RANK_COLUMN,)
        insert_images += BEST_CANDIDATES
    for manifest in _iter_manifests(run, columns):
        database.register("shard_rows", manifest.to_reader())
        database.execute(insert_images.format(run=table, key=key, candidates=candidates))


def _iter_manifests(run: Run, columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """Columns of the manifest, shard by shard, with each row's number in the run."""

    def read_shard(shard: int) -> pa.Table:
        manifest = read_shard_columns(run, shard, columns)
        start = shard * SHARD_STRIDE
        end = start + manifest.num_rows
        numbers = pa.array(range(start, end), pa.int64())
        return manifest.append_column("number", numbers)

    shards = len(run.plan.shards)
    return map_ordered(read_shard, shards)


def _count_pairs(database: Database, sample_size: int) -> Pairing:
    rows = database.fetch_rows(COUNT_STATUSES)
    statuses = Counter({(first, second): images for first, second, images in rows})
    ((first, second, pixels_equal),) = database.fetch_rows(COUNT_IMAGES)
    both = statuses.total()
    return Pairing(
        both=both,
        only_first=first - both,
        only_second=second - both,
        pixels_equal=pixels_equal,
        statuses=statuses,
        sample=database.fetch_rows(SAMPLE_PAIRS.format(limit=sample_size)),
    )
