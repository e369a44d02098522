"""Questions to the index: images that fulfill conditions, page by page; how many; which are alike.

A page begins after the last image of the one before it, so that a late page costs no more than the
first. Row numbers come first, and the columns that a page shows only for those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.gallery.columns import ID_COLUMN, RUN_COLUMN, Column, ColumnKind
from imagekiln.steps.gallery.index import GalleryIndex, Position
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_CONDITIONS = 16
MAX_WORDS = 16
MAX_PAGE_IMAGES = 200
MAX_NEIGHBORS = 24
MAX_TEXT_CHARS = 300
MAX_INT64 = 2**63 - 1
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
ShortText = Annotated[str, Field(max_length=1000)]
RowNumber = Annotated[int, Field(ge=0, le=MAX_INT64)]


@dataclass(frozen=True, slots=True)
class Condition:
    """What a column must fulfill. `contains` looks for each word, in small or capital letters."""

    column: ShortText
    operator: Operator
    value: ShortText


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A page of images: those that fulfill all conditions, after the image numbered `after`.

    With `sort`, by that column, without images that have no value in it.
    """

    where: Annotated[tuple[Condition, ...], Field(max_length=MAX_CONDITIONS)] = ()
    sort: ShortText | None = None
    descending: bool = True
    after: RowNumber | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_IMAGES)] = 48


@dataclass(frozen=True, slots=True)
class Tile:
    """An image on a page. `number` is its row in the index, `value` that of the sorted column.

    `distance` is the number of bits by which its perceptual hash differs from another's.
    """

    number: int
    run: str
    image_id: str
    status: str
    prompt: str
    error: str | None
    value: str | None = None
    distance: int | None = None


def find_page(index: GalleryIndex, query: PageQuery) -> list[Tile]:
    """The images of a page, in order. Raises BadInput where a condition fits no column."""
    clauses, values = _where(index, query.where)
    if query.sort is None:
        if query.after is not None:
            clauses.append("rowid > ?")
            values.append(query.after)
        # Without an order, DuckDB gives rows as they were inserted, and stops at the limit.
        sql = f"SELECT rowid FROM images {_all_of(clauses)} LIMIT {query.limit}"
        return _tiles(index, [row for (row,) in index.fetch(sql, values)])

    column = find_column(index, query.sort)
    if column.kind not in ("whole", "number"):
        raise BadInput(f"{cut_name(column.name)} is no column of numbers. Sort by another one.")
    clauses.append(f"{column.field} IS NOT NULL")
    if query.after is not None:
        _add_sort_key(index, query, column, clauses, values)
    direction = "DESC" if query.descending else "ASC"
    order = f"ORDER BY {column.field} {direction}, rowid LIMIT {query.limit}"
    rows = index.fetch(
        f"SELECT rowid, {column.field} FROM images {_all_of(clauses)} {order}", values
    )
    return _tiles(index, [row for row, _ in rows], values=[str(value) for _, value in rows])


def count_images(index: GalleryIndex, where: Sequence[Condition]) -> int:
    """How many indexed images fulfill the conditions. Raises as `find_page` does."""
    clauses, values = _where(index, where)
    ((count,),) = index.fetch(f"SELECT count(*) FROM images {_all_of(clauses)}", values)
    return int(count)


def find_neighbors(index: GalleryIndex, number: int) -> list[Tile]:
    """The images whose perceptual hashes differ least from that of a row, the nearest first."""
    phash = index.columns.get("phash")
    if phash is None:
        return []
    hashes = index.fetch(f"SELECT {phash.field} FROM images WHERE rowid = ?", [number])
    if not hashes or hashes[0][0] is None:
        return []
    distance = f"bit_count(xor({phash.field}, ?))"
    rows = index.fetch(
        f"SELECT rowid, {distance} AS distance FROM images WHERE {phash.field} IS NOT NULL "
        f"AND rowid <> ? ORDER BY distance, rowid LIMIT {MAX_NEIGHBORS}",
        [hashes[0][0], number],
    )
    return _tiles(index, [row for row, _ in rows], distances=[bits for _, bits in rows])


def find_position(
    index: GalleryIndex, run_id: str, image_id: str, number: int | None = None
) -> tuple[int, Position]:
    """The row of an image in the index, and its place in a manifest.

    `number` says where to look first. Raises Missing where no indexed run has such an image.
    """
    conditions = [Condition(RUN_COLUMN, "is", run_id), Condition(ID_COLUMN, "is", image_id)]
    clauses, values = _where(index, conditions)
    sql = f"SELECT rowid, run, shard, shard_row FROM images {_all_of(clauses)}"
    rows = []
    if number is not None:
        rows = index.fetch(f"{sql} AND rowid = ?", [*values, number])
    if not rows:
        rows = index.fetch(f"{sql} LIMIT 1", values)
    if not rows:
        raise Missing(f"{run_id}: has no image {image_id} in the index. Reload the page.")
    row, run, shard, shard_row = rows[0]
    return row, Position(run, shard, shard_row)


def mean_by_run(index: GalleryIndex, name: str) -> dict[str, float]:
    """The mean of a column of numbers, for each run that has values in it."""
    column = find_column(index, name)
    if column.kind not in ("whole", "number"):
        raise BadInput(f"{cut_name(name)} is no column of numbers. Choose another one.")
    rows = index.fetch(
        f"SELECT run, avg({column.field}) FROM images WHERE {column.field} IS NOT NULL GROUP BY run"
    )
    return {index.runs.runs[run].run_id: float(mean) for run, mean in rows}


def find_column(index: GalleryIndex, name: str) -> Column:
    """The column with this name. Raises BadInput."""
    column = index.columns.get(name)
    if column is None:
        raise BadInput(f"There is no column {cut_name(name)!r}. Choose one that the page lists.")
    return column


def _where(index: GalleryIndex, where: Sequence[Condition]) -> tuple[list[str], list[object]]:
    """Clauses of SQL, and the values of their question marks."""
    clauses: list[str] = []
    values: list[object] = []
    for condition in where:
        column = find_column(index, condition.column)
        if condition.operator not in OPERATORS[column.kind]:
            raise BadInput(
                f"{cut_name(column.name)} cannot be asked {condition.operator!r}. "
                f"Choose {' or '.join(OPERATORS[column.kind])}."
            )
        if condition.operator == "contains":
            words = condition.value.lower().split()[:MAX_WORDS]
            clauses += [f"contains(lower({column.field}), ?)" for _ in words]
            values += words
        elif column.kind == "flags":
            clauses.append(f"list_contains({column.field}, ?)")
            values.append(condition.value)
        else:
            clauses.append(_comparison(column, condition.operator))
            values.append(_parse_value(index, column, condition.value))
    return clauses, values


def _comparison(column: Column, operator: Operator) -> str:
    parameter = "CAST(? AS UUID)" if column.kind == "id" else "?"
    return f"{column.field} {COMPARISONS[operator]} {parameter}"


def _parse_value(index: GalleryIndex, column: Column, text: str) -> object:
    """The value in a text, as the column has it. Raises BadInput."""
    if column.kind == "run":
        for number, run in enumerate(index.runs.runs):
            if run.run_id == text:
                return number
        raise Missing(f"There is no run {cut_name(text)!r} in this gallery. Choose another one.")
    if column.kind == "id":
        digits = text.lower()
        if len(digits) != 32 or not set(digits) <= set("0123456789abcdef"):
            raise BadInput(f"{cut_name(text)!r} is no image_id: those have 32 digits from 0 to f.")
        return digits
    if column.kind in ("whole", "number"):
        return _parse_number(column, text)
    return text


def _parse_number(column: Column, text: str) -> int | float:
    try:
        number = int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            name = cut_name(column.name)
            raise BadInput(f"{name}: {cut_name(text)!r} is no number. Correct it.") from None
    if abs(number) > MAX_INT64:
        return float(number)
    return number


def _add_sort_key(
    index: GalleryIndex,
    query: PageQuery,
    column: Column,
    clauses: list[str],
    values: list[object],
) -> None:
    """Begin after the image `query.after`, by its value and, among equal ones, its row."""
    rows = index.fetch(f"SELECT {column.field} FROM images WHERE rowid = ?", [query.after])
    if not rows:
        raise Missing("The page before this one is no longer in the index. Begin at the first.")
    last = rows[0][0]
    comparison = "<" if query.descending else ">"
    clauses.append(f"({column.field} {comparison} ? OR ({column.field} = ? AND rowid > ?))")
    values += [last, last, query.after]


def _all_of(clauses: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(clauses)}" if clauses else ""


def _tiles(
    index: GalleryIndex,
    numbers: Sequence[int],
    values: Sequence[str] = (),
    distances: Sequence[int] = (),
) -> list[Tile]:
    """What pages show of these rows, in their order."""
    if not numbers:
        return []
    fields = [index.columns[name].field for name in ("status", "prompt", "error")]
    marks = ", ".join("?" for _ in numbers)
    rows = index.fetch(
        f"SELECT rowid, run, image_id, {', '.join(fields)} FROM images WHERE rowid IN ({marks})",
        numbers,
    )
    by_number: dict[int, tuple[Any, ...]] = {row[0]: row for row in rows}
    tiles = []
    for place, number in enumerate(numbers):
        _, run, image_id, status, prompt, error = by_number[number]
        tile = Tile(
            number=number,
            run=index.runs.runs[run].run_id,
            image_id=image_id.hex,
            status=status,
            prompt=truncate_text(prompt or "", MAX_TEXT_CHARS),
            error=None if error is None else truncate_text(error, MAX_TEXT_CHARS),
            value=values[place] if values else None,
            distance=distances[place] if distances else None,
        )
        tiles.append(tile)
    return tiles
