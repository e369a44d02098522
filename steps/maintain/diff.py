"""Comparison of two runs: the same prompts under two models or settings, in numbers and on a page.

DuckDB pairs images in bounded memory, by a hash of the row's id or prompts and of the image index.
With candidates, only the best image counts.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.codecs import encode_thumbnail
from imagekiln.steps.imaging.measures import compare_pixels, resize_like
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.models.facts import default_guidance, default_steps
from imagekiln.steps.runs.keys import DIFF_PAGE_KEY, PLAN_KEY, diff_image_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.readback import read_image_pixels
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runs.run import Run, open_run, read_shard_columns, read_shard_manifest
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.sanitize import sanitize_page_text
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

MAX_PROMPT_CHARS = 400
PICTURE_SIDE = 320  # pixels
SHARD_STRIDE = 2**20  # more rows than a shard has
COLUMNS: tuple[str, ...] = (
    "id",
    "image_index",
    "prompt",
    "negative_prompt",
    "status",
    "pixels_sha256",
)
CREATE_IMAGES = """
CREATE TABLE images
    (run INT, number BIGINT, status VARCHAR, pixels UHUGEINT, id UHUGEINT, texts UHUGEINT)"""
INSERT_IMAGES = """
INSERT INTO images
SELECT
    {run},
    number,
    status,
    md5_number(pixels_sha256),
    md5_number('id|' || id || '|' || image_index // {candidates}),
    md5_number(
        concat_ws('|', image_index // {candidates}, strlen(prompt), prompt, negative_prompt))
FROM shard_rows"""
# Candidates are neighbors. If none has won, as when all failed, the first represents them.
BEST_CANDIDATES = """
QUALIFY row_number() OVER (
    PARTITION BY number - image_index % {candidates}
    ORDER BY status = 'outscored', candidate_rank, number) = 1"""
# If only one of the runs has ids, images are paired by prompt. Images with the same name, as in a
# sweep, are paired in order.
CREATE_PAIRS = """
CREATE VIEW named AS
SELECT *, row_number() OVER (PARTITION BY run, name ORDER BY number) AS place
FROM (
    SELECT
        *,
        CASE WHEN (SELECT count(DISTINCT run) FROM images WHERE id IS NOT NULL) = 2
            THEN coalesce(id, texts) ELSE texts END AS name
    FROM images);
CREATE TABLE pairs AS
SELECT
    name,
    one.number AS first_number,
    other.number AS second_number,
    one.status AS first_status,
    other.status AS second_status,
    one.pixels = other.pixels AS pixels_equal
FROM (FROM named WHERE run = 0) one JOIN (FROM named WHERE run = 1) other USING (name, place)"""
COUNT_PAIRS = """
SELECT
    count(*),
    (SELECT count(*) FROM images WHERE run = 0) - count(*),
    (SELECT count(*) FROM images WHERE run = 1) - count(*),
    count(*) FILTER (pixels_equal)
FROM pairs"""
COUNT_CHANGES = """
SELECT first_status, second_status, count(*) FROM pairs
WHERE first_status != second_status GROUP BY ALL ORDER BY ALL"""
# Ordered by a hash, so that the first pairs are a random sample.
SAMPLE_PAIRS = """
SELECT first_number, second_number FROM pairs
WHERE first_status = 'ok' AND second_status = 'ok'
ORDER BY md5(concat(name, first_number)) LIMIT 100"""


@dataclass(frozen=True, slots=True)
class PairComparison:
    """A compared pair. `rms` is the pixel distance; sizes are width and height in pixels."""

    prompt: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    rms: float


@dataclass(frozen=True, slots=True)
class StatusChange:
    """Number of images with one status in the first run and another in the second."""

    before: str
    after: str
    images: int


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that differs between the runs."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Diff:
    """Comparison of two runs.

    `rms` is the mean pixel distance over `sampled` pairs, in levels of 0 to 255.
    """

    first: str
    second: str
    page: str
    both: int
    only_first: int
    only_second: int
    pixels_equal: int
    changes: tuple[StatusChange, ...]
    settings: tuple[SettingDifference, ...]
    sampled: int
    rms: float | None


def diff(first: str, second: str, to: str) -> Diff:
    """Compare the runs at two URIs, and write a page with images into the folder `to`.

    Images are paired by row id and image index if both runs have ids, or else by prompt, negative
    prompt and image index. Images that share these are paired in order. With candidates, only the
    best counts. Raises Incomplete if a run was never aggregated, BadInput on damage, TryAgain.
    """
    runs = (open_run(first), open_run(second))
    target = open_store(to)
    if target.exists(PLAN_KEY):
        raise BadInput(f"{target.uri}: is a run. Choose another folder for the page.")

    with (
        temporary_folder("imagekiln-diff-") as folder,
        closing(Database(Path(folder))) as database,
    ):
        _pair_images(database, runs)
        [(both, only_first, only_second, pixels_equal)] = database.fetch_rows(COUNT_PAIRS)
        changes = database.fetch_rows(COUNT_CHANGES)
        sample = database.fetch_rows(SAMPLE_PAIRS)

    compare = partial(_compare_pair, runs, sample, target)
    comparisons = list(map_ordered(compare, len(sample)))
    distances = [comparison.rms for comparison in comparisons]
    result = Diff(
        first=runs[0].store.uri,
        second=runs[1].store.uri,
        page=target.uri_of(DIFF_PAGE_KEY),
        both=both,
        only_first=only_first,
        only_second=only_second,
        pixels_equal=pixels_equal,
        changes=tuple(StatusChange(*change) for change in changes),
        settings=tuple(_setting_differences(runs[0].plan, runs[1].plan)),
        sampled=len(sample),
        rms=math.fsum(distances) / len(distances) if distances else None,
    )
    page = _render_page(result, comparisons)
    target.replace(DIFF_PAGE_KEY, page.encode())
    return result


def _pair_images(database: Database, runs: Sequence[Run]) -> None:
    """Fill the table of pairs. Raises Incomplete if a run was not aggregated."""
    database.execute(CREATE_IMAGES)
    for place, run in enumerate(runs):
        candidates = run.plan.job.candidates
        columns = COLUMNS
        insert = INSERT_IMAGES
        if candidates > 1:
            columns = (*columns, RANK_COLUMN)
            insert += BEST_CANDIDATES
        sql = insert.format(run=place, candidates=candidates)
        read = partial(_read_numbered, run, columns)
        for rows in map_ordered(read, len(run.plan.shards)):
            database.insert(sql, "shard_rows", rows)
    database.execute(CREATE_PAIRS)


def _read_numbered(run: Run, columns: Sequence[str], shard: int) -> pa.Table:
    """Read columns of the manifest of a shard, with each row's number in the run."""
    rows = read_shard_columns(run, shard, columns)
    start = shard * SHARD_STRIDE
    numbers = pa.array(range(start, start + rows.num_rows), pa.int64())
    return rows.append_column("number", numbers)


def _read_row(run: Run, number: int) -> dict[str, Any]:
    """Read the manifest row of this number in a run."""
    shard, place = divmod(number, SHARD_STRIDE)
    manifest = read_shard_manifest(run, shard)
    return to_rows(manifest.slice(place, 1))[0]


def _compare_pair(
    runs: Sequence[Run], sample: Sequence[tuple[int, int]], target: Store, index: int
) -> PairComparison:
    """Measure one pair of a sample, and write its images."""
    first_number, second_number = sample[index]
    row = _read_row(runs[0], first_number)
    first = read_image_pixels(runs[0].store, row)
    other_row = _read_row(runs[1], second_number)
    second = read_image_pixels(runs[1].store, other_row)
    for key, pixels in zip(_picture_keys(index), (first, second), strict=True):
        content = encode_thumbnail(pixels, PICTURE_SIDE)
        target.replace(key, content)
    difference = compare_pixels(first, resize_like(second, first))
    return PairComparison(
        prompt=row["prompt"],
        sizes=(first.shape[1::-1], second.shape[1::-1]),
        rms=difference.rms,
    )


def _picture_keys(index: int) -> tuple[str, str]:
    return diff_image_key(index, "a"), diff_image_key(index, "b")


def _render_page(result: Diff, comparisons: Sequence[PairComparison]) -> str:
    """Render the page as HTML. All user input is escaped."""
    environment = Environment(
        loader=PackageLoader("imagekiln.steps.maintain", "."),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["visible_text"] = _visible_text
    pairs = [(comparison, _picture_keys(index)) for index, comparison in enumerate(comparisons)]
    return environment.get_template("diff.html.j2").render(diff=result, pairs=pairs)


def _visible_text(value: str) -> str:
    if len(value) > MAX_PROMPT_CHARS:
        value = f"{value[:MAX_PROMPT_CHARS]}…"
    return sanitize_page_text(value)


def _setting_differences(first: Plan, second: Plan) -> Iterator[SettingDifference]:
    """Yield the settings that differ between the jobs, and the model's files if they differ."""
    first_settings = _plan_settings(first)
    second_settings = _plan_settings(second)
    for name in first_settings | second_settings:
        values = (first_settings.get(name, ""), second_settings.get(name, ""))
        if values[0] != values[1]:
            yield SettingDifference(name, *values)


def _plan_settings(plan: Plan) -> dict[str, str]:
    job = plan.job.model_dump(mode="json", exclude={"output", "cluster"})
    resolved = {
        "defaults.steps": default_steps(plan.job, plan.model),
        "defaults.guidance": default_guidance(plan.job, plan.model),
        "model files": plan.model.digest,
        "fused LoRAs": plan.fused_loras,
    }
    return dict(_flatten({**job, **resolved}))


def _flatten(values: dict[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", str(value)
