"""Queries of the index: pages of images that satisfy conditions, counts, and similar images.

A page begins after the last image of the previous page, so that late pages are as fast as the
first. Queries select row numbers first, and then the other columns of these rows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.gallery.index import (
    ColumnKind,
    GalleryIndex,
    IndexColumn,
    Position,
)
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.image import CAPTION_SETTINGS, describe_setting, find_varied_settings
from imagekiln.steps.runs.keys import IMAGE_ID_PATTERN
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_PAGE_IMAGES = 200
MAX_NEIGHBORS = 24
MAX_TEXT_CHARS = 300
MAX_INT64 = 2**63 - 1
WHOLE_PATTERN = re.compile(r"[-+]?[0-9]+")
Operator = Literal["is", "contains", "at_least", "at_most"]
OPERATORS: dict[ColumnKind, tuple[Operator, ...]] = {
    "text": ("contains", "is"),
    "whole": ("is", "at_least", "at_most"),
    "number": ("at_least", "at_most", "is"),
    "flags": ("is",),
    "id": ("is",),
    "run": ("is",),
}
COMPARISONS = {"is": "=", "at_least": ">=", "at_most": "<="}
TILE_COLUMNS = ("status", "prompt", "error", *CAPTION_SETTINGS)
RowNumber = Annotated[int, Field(ge=0, le=MAX_INT64)]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a column. `contains` matches each word, ignoring case."""

    column: str
    operator: Operator
    value: str


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A query for a page of images that satisfy all conditions, after the image number `after`.

    With `sort`, images without a value in that column come last.
    """

    where: tuple[Condition, ...] = ()
    sort: str | None = None
    descending: bool = True
    after: RowNumber | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_IMAGES)] = 48


@dataclass(frozen=True, slots=True)
class Tile:
    """An image on a page. `number` is its row in the index, `note` explains its position.

    `settings` describes settings that vary among the images of its prompt.
    """

    number: int
    run: str
    image_id: str
    status: str
    prompt: str
    error: str | None
    settings: str = ""
    note: str = ""


@dataclass(slots=True)
class Filter:
    """Clauses of a WHERE condition, and their parameters."""

    clauses: list[str] = field(default_factory=list)
    values: list[object] = field(default_factory=list)

    def add(self, clause: str, *values: object) -> None:
        """Add a clause with its parameters."""
        self.clauses.append(clause)
        self.values += values

    @property
    def sql(self) -> str:
        """The clauses as a WHERE condition; empty without clauses."""
        if not self.clauses:
            return ""
        joined = " AND ".join(self.clauses)
        return f"WHERE {joined}"


def find_page(index: GalleryIndex, query: PageQuery) -> list[Tile]:
    """Find the images of a page, in order. Raises BadInput if a condition fits no column."""
    selection = _select(index, query.where)
    if query.sort is not None:
        column = _find_numbers(index, query.sort)
        return _find_sorted_page(index, query, column, selection)

    if query.after is not None:
        selection.add("rowid > ?", query.after)
    # Without ORDER BY, DuckDB returns rows in insertion order, and stops at the limit.
    sql = f"SELECT rowid FROM images {selection.sql} LIMIT {query.limit}"
    rows = index.fetch(sql, selection.values)
    return _tiles(index, {number: "" for (number,) in rows})


def _find_sorted_page(
    index: GalleryIndex, query: PageQuery, column: IndexColumn, selection: Filter
) -> list[Tile]:
    name = column.field
    if query.after is not None:
        rows = index.fetch(f"SELECT {name} FROM images WHERE rowid = ?", [query.after])
        if not rows:
            raise Missing("The page before this one is not in the index. Begin at the first.")
        last = rows[0][0]
        if last is None:
            selection.add(f"{name} IS NULL AND rowid > ?", query.after)
        else:
            comparison = "<" if query.descending else ">"
            clause = f"({name} {comparison} ? OR {name} = ? AND rowid > ? OR {name} IS NULL)"
            selection.add(clause, last, last, query.after)

    direction = "DESC" if query.descending else "ASC"
    order = f"ORDER BY {name} {direction} NULLS LAST, rowid LIMIT {query.limit}"
    sql = f"SELECT rowid, {name} FROM images {selection.sql} {order}"
    rows = index.fetch(sql, selection.values)
    notes = {number: _format_number(query.sort, value) for number, value in rows}
    return _tiles(index, notes)


def _format_number(name: str | None, value: float | None) -> str:
    if value is None:
        return f"no {name}"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def count_images(index: GalleryIndex, where: Sequence[Condition]) -> dict[str, int]:
    """Count indexed images that satisfy the conditions, by status. Raises BadInput."""
    selection = _select(index, where)
    status = index.columns["status"].field
    sql = f"SELECT {status}, count(*) FROM images {selection.sql} GROUP BY ALL ORDER BY ALL"
    return dict(index.fetch(sql, selection.values))


def find_candidates(index: GalleryIndex, position: Position) -> list[Tile]:
    """Find all candidates for an image, best first; none if the job has no candidates."""
    job = index.runs.runs[position.run].run.plan.job
    if job.keep is None:
        return []
    names = [name for name in (RANK_COLUMN, *job.scores, "seed") if name in index.columns]
    fields = ", ".join(index.columns[name].field for name in names)
    first = position.row - position.row % job.candidates
    sql = f"""
        SELECT rowid, {fields} FROM images
        WHERE run = ? AND shard = ? AND shard_row BETWEEN ? AND ?
        ORDER BY {index.columns[RANK_COLUMN].field} NULLS LAST, rowid
    """
    rows = index.fetch(sql, [position.run, position.shard, first, first + job.candidates - 1])
    notes = {}
    for number, *values in rows:
        texts = [
            describe_setting(name.removeprefix("candidate_"), value)
            for name, value in zip(names, values, strict=True)
            if value is not None
        ]
        notes[number] = ", ".join(texts)
    return _tiles(index, notes)


def find_neighbors(index: GalleryIndex, number: int) -> list[Tile]:
    """Find images with the most similar perceptual hashes, nearest first."""
    phash = index.columns["phash"].field
    hashes = index.fetch(f"SELECT {phash} FROM images WHERE rowid = ?", [number])
    if not hashes or hashes[0][0] is None:
        return []
    sql = f"""
        SELECT rowid, bit_count(xor({phash}, ?)) AS distance FROM images
        WHERE {phash} IS NOT NULL AND rowid <> ?
        ORDER BY distance, rowid LIMIT {MAX_NEIGHBORS}
    """
    rows = index.fetch(sql, [hashes[0][0], number])
    notes = {neighbor: f"{bits} bits" for neighbor, bits in rows}
    return _tiles(index, notes)


def find_position(index: GalleryIndex, number: int, image_id: str) -> Position:
    """Find the manifest position of an image. Raises Missing."""
    sql = "SELECT run, shard, shard_row FROM images WHERE rowid = ? AND image_id = CAST(? AS UUID)"
    rows = index.fetch(sql, [number, image_id])
    if not rows:
        raise Missing(f"{image_id}: is not in the index. Reload the page.")
    return Position(*rows[0])


def mean_by_run(index: GalleryIndex, name: str) -> dict[str, float | None]:
    """Compute the mean of a column over ok images, by run. Raises BadInput."""
    column = _find_numbers(index, name).field
    status = index.columns["status"].field
    sql = f"SELECT run, avg({column}) FROM images WHERE {status} = 'ok' GROUP BY run"
    means = index.fetch(sql)
    return {index.runs.runs[run].run_id: mean for run, mean in means}


def find_column(index: GalleryIndex, name: str) -> IndexColumn:
    """Return the column with a name. Raises BadInput if there is none."""
    column = index.columns.get(name)
    if column is None:
        raise BadInput(f"There is no column {cut_name(name)!r}. Choose one that the page lists.")
    return column


def _find_numbers(index: GalleryIndex, name: str) -> IndexColumn:
    column = find_column(index, name)
    if column.kind not in ("whole", "number"):
        raise BadInput(f"{cut_name(name)} is no column of numbers. Choose another one.")
    return column


def _select(index: GalleryIndex, where: Sequence[Condition]) -> Filter:
    selection = Filter()
    for condition in where:
        column = find_column(index, condition.column)
        if condition.operator not in OPERATORS[column.kind]:
            choices = " or ".join(OPERATORS[column.kind])
            raise BadInput(
                f"{cut_name(column.name)} cannot be asked {condition.operator!r}. Choose {choices}."
            )
        if condition.operator == "contains":
            for word in condition.value.lower().split():
                selection.add(f"contains(lower({column.field}), ?)", word)
        elif column.kind == "flags":
            selection.add(f"list_contains({column.field}, ?)", condition.value)
        else:
            value = _parse_value(index, column, condition.value)
            parameter = "CAST(? AS UUID)" if column.kind == "id" else "?"
            selection.add(f"{column.field} {COMPARISONS[condition.operator]} {parameter}", value)
    return selection


def _parse_value(index: GalleryIndex, column: IndexColumn, text: str) -> object:
    match column.kind:
        case "run":
            run_ids = [run.run_id for run in index.runs.runs]
            if text not in run_ids:
                raise Missing(f"There is no run {cut_name(text)!r} here. Choose another one.")
            return run_ids.index(text)
        case "id":
            if re.fullmatch(IMAGE_ID_PATTERN, text.lower()) is None:
                raise BadInput(f"{cut_name(text)!r} is no image_id of 32 digits from 0 to f.")
            return text.lower()
        case "whole" | "number":
            return _parse_number(column, text)
        case _:
            return text


def _parse_number(column: IndexColumn, text: str) -> int | float:
    try:
        number = float(text)
    except ValueError:
        name = cut_name(column.name)
        raise BadInput(f"{name}: {cut_name(text)!r} is no number. Correct it.") from None
    is_whole = WHOLE_PATTERN.fullmatch(text) and abs(number) < MAX_INT64
    return int(text) if is_whole else number


def _tiles(index: GalleryIndex, notes: Mapping[int, str]) -> list[Tile]:
    """Fetch tiles for the image numbers in `notes`, in order, each with its note."""
    if not notes:
        return []
    names = [name for name in TILE_COLUMNS if name in index.columns]
    fields = ", ".join(index.columns[name].field for name in names)
    marks = ", ".join("?" for _ in notes)
    sql = f"SELECT rowid, run, image_id, {fields} FROM images WHERE rowid IN ({marks})"
    rows = {}
    for number, run, image_id, *values in index.fetch(sql, list(notes)):
        run_id = index.runs.runs[run].run_id
        rows[number] = run_id, image_id.hex, dict(zip(names, values, strict=True))
    varied = find_varied_settings((row["prompt"] or "", row) for *_, row in rows.values())
    tiles = []
    for number, note in notes.items():
        run_id, image_id, row = rows[number]
        prompt = row["prompt"] or ""
        settings = [describe_setting(name, row[name]) for name in varied[prompt]]
        tile = Tile(
            number=number,
            run=run_id,
            image_id=image_id,
            status=row["status"],
            prompt=truncate_text(prompt, MAX_TEXT_CHARS),
            error=row["error"] and truncate_text(row["error"], MAX_TEXT_CHARS),
            settings=", ".join(settings),
            note=note,
        )
        tiles.append(tile)
    return tiles
