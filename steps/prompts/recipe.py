"""What a template makes: how many prompts, and each of them by its number.

Choices that are combined are the digits of that number, so any prompt is made without the others.
Choices at random follow from the row's key, by the draws of `draws`.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from imagekiln.steps.prompts.draws import Hashes, Weights, draw_options, hash_text

Ways: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Drawing:
    """One prompt while it is made: what decides it, and what was chosen so far.

    `key` decides the draws. `chosen` has the text of each choice by the name of its wildcard, or
    `{}` where it has none; those of the same name are numbered. Texts are cut at
    `limit` characters.
    """

    key: bytes
    columns: Mapping[str, str]
    limit: int
    variables: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, str | list[str]] = field(default_factory=dict)

    def add_choice(self, name: str) -> str:
        """Make room for a choice, before those within it. Returns its name, numbered if needed."""
        unique = name
        number = 1
        while unique in self.chosen:
            number += 1
            unique = f"{name}#{number}"
        self.chosen[unique] = ""
        return unique


@dataclass(frozen=True, slots=True)
class Size:
    """The number of texts that a piece can be, and the most choices made for one of them.

    `height` is how deep choices are nested in it.
    """

    count: int = 1
    slots: int = 0
    height: int = 0


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that is always the same."""

    text: str
    size: Size = Size()


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """The text of a column."""

    name: str
    size: Size = Size()


@dataclass(frozen=True, slots=True)
class VariableValue:
    """The text of a variable."""

    name: str
    size: Size = Size()


@dataclass(frozen=True, slots=True)
class AssignedValue:
    """A variable and what is assigned to it; no text."""

    name: str
    value: "Pieces"
    size: Size


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces, one after the other, each with its place among them; the last varies fastest."""

    pieces: tuple[tuple[str, "Piece"], ...]
    size: Size


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a choice or of a wildcard, without those of weight 0.

    `weights` is None where all are equal; `totals` are the sums of the bodies' counts up to each.
    """

    sources: tuple[str, ...]
    bodies: tuple[Pieces, ...]
    hashes: Hashes
    weights: Weights | None
    totals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """From `fewest` to `most` of the options, joined: drawn, or each combination in turn.

    `ways[index][count]`, where several are combined, is the number of texts that so many of the
    options from that index on can be.
    """

    name: str
    options: Options
    fewest: int
    most: int
    separator: str
    size: Size
    is_drawn: bool
    ways: Ways = ()


Piece: TypeAlias = Literal | ColumnValue | VariableValue | AssignedValue | Selection


@dataclass(frozen=True, slots=True)
class Recipe:
    """A template with the lines of its wildcards: it makes `count` prompts of a row."""

    template: str
    columns: frozenset[str]
    pieces: Pieces

    @property
    def count(self) -> int:
        """The prompts, before any are drawn again."""
        return self.pieces.size.count

    def render(self, drawing: Drawing, number: int, path: str = "") -> str:
        """The prompt of that number, from 0; `path` tells the draws of two templates apart."""
        return _render_pieces(self.pieces, drawing, number, path).strip()


def _render_pieces(pieces: Pieces, drawing: Drawing, number: int, path: str) -> str:
    digits = []
    for _, piece in reversed(pieces.pieces):
        number, digit = divmod(number, piece.size.count)
        digits.append(digit)
    text = ""
    for place, piece in pieces.pieces:
        rendered = _render(piece, drawing, digits.pop(), f"{path}/{place}")
        text = f"{text}{rendered}"[: drawing.limit]
    return text


def _render(piece: Piece, drawing: Drawing, number: int, path: str) -> str:
    """The text of that number; `path` is the place of the piece, which decides its draws."""
    match piece:
        case Literal():
            return piece.text
        case ColumnValue():
            return drawing.columns[piece.name]
        case VariableValue():
            return drawing.variables[piece.name]
        case AssignedValue():
            value = _render_pieces(piece.value, drawing, number, path)
            drawing.variables[piece.name] = value
            return ""
        case Selection():
            return _render_selection(piece, drawing, number, path)


def _render_selection(piece: Selection, drawing: Drawing, number: int, path: str) -> str:
    name = drawing.add_choice(piece.name)
    texts = []
    options = piece.options
    for index, inner_number in _select(piece, drawing, number, path):
        source = options.sources[index]
        body = options.bodies[index]
        text = _render_pieces(body, drawing, inner_number, f"{path}={source}")
        texts.append(text)
    joined = piece.separator.join(texts)
    is_single = piece.most == 1
    drawing.chosen[name] = joined if is_single else texts
    return joined


def _select(
    piece: Selection, drawing: Drawing, number: int, path: str
) -> Sequence[tuple[int, int]]:
    """The indices of options, each with the number of its text."""
    if piece.is_drawn:
        return [(index, 0) for index in _draw(piece, drawing, path)]
    if piece.ways:
        return _combine(piece, number)
    totals = piece.options.totals
    index = bisect_right(totals, number)
    before = totals[index - 1] if index else 0
    return [(index, number - before)]


def _draw(piece: Selection, drawing: Drawing, path: str) -> Sequence[int]:
    """Draw how many options, then which, in the order of the draw."""
    count = piece.fewest
    if piece.most > piece.fewest:
        counts = np.arange(piece.fewest, piece.most + 1, dtype=np.uint64)
        key = hash_text(f"{path}#", drawing.key)
        count += draw_options(counts, None, key, 1)[0]
    if not count:
        return ()
    key = hash_text(path, drawing.key)
    return draw_options(piece.options.hashes, piece.options.weights, key, count)


def _combine(piece: Selection, number: int) -> Sequence[tuple[int, int]]:
    """The combination of that number, in the order of the options."""
    count = piece.fewest
    while number >= piece.ways[0][count]:
        number -= piece.ways[0][count]
        count += 1
    picked = []
    for index, body in enumerate(piece.options.bodies):
        if not count:
            break
        rest = piece.ways[index + 1][count - 1]
        with_option = body.size.count * rest
        if number >= with_option:
            number -= with_option
            continue
        inner_number, number = divmod(number, rest)
        picked.append((index, inner_number))
        count -= 1
    return picked
