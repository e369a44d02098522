"""Render the prompts of a template, each by its number, independently of the others.

The digits of the number select combined choices. Drawn choices follow from a row's key.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from imagekiln.steps.errors import BadInput
from imagekiln.steps.prompts.draws import draw_options, hash_text
from imagekiln.steps.prompts.template import (
    Choice,
    ColumnReference,
    Piece,
    Template,
    Text,
    Variable,
    VariableAssignment,
    count_texts,
)

MAX_CHOICES = 1000  # for one prompt


@dataclass(slots=True)
class Drawing:
    """The state of rendering one prompt: its inputs, and the choices so far.

    `key` decides the draws. `chosen` has the value of each choice by its name; repeated names are
    numbered. Values are cut at `limit` characters.
    """

    key: bytes
    columns: Mapping[str, str]
    limit: int
    variables: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, str | list[str]] = field(default_factory=dict)

    def add_choice(self, name: str) -> str:
        """Register a choice before its nested ones. Return its name, numbered if it is repeated.

        Raises BadInput if there are too many choices.
        """
        if len(self.chosen) == MAX_CHOICES:
            raise BadInput(
                f"prompts.template: makes over {MAX_CHOICES} choices for one prompt. Use fewer "
                "wildcards and braces."
            )
        unique = name
        number = 1
        while unique in self.chosen:
            number += 1
            unique = f"{name}#{number}"
        self.chosen[unique] = ""
        return unique


def render(template: Template, drawing: Drawing, number: int, path: str = "") -> str:
    """Render the prompt with this number, from 0. Draws depend on `path`, its place in the tree."""
    digits = []
    for piece in reversed(template):
        number, digit = divmod(number, count_texts((piece,)))
        digits.append(digit)
    text = ""
    follows_nothing = False  # after an empty piece, such as an empty option, one space is enough
    for piece in template:
        rendered = _render_piece(piece, drawing, digits.pop(), path)
        if follows_nothing and text.endswith(" "):
            rendered = rendered.removeprefix(" ")
        follows_nothing = not rendered
        text = f"{text}{rendered}"[: drawing.limit]
    return text


def _render_piece(piece: Piece, drawing: Drawing, number: int, path: str) -> str:
    match piece:
        case Text():
            return piece.text
        case ColumnReference():
            return drawing.columns[piece.name]
        case Variable():
            return drawing.variables[piece.name]
        case VariableAssignment():
            value = render(piece.value, drawing, number, f"{path}/{piece.label}")
            drawing.variables[piece.name] = value
            return ""
        case Choice():
            return _render_choice(piece, drawing, number, f"{path}/{piece.label}")


def _render_choice(choice: Choice, drawing: Drawing, number: int, path: str) -> str:
    name = drawing.add_choice(choice.name)
    texts = []
    for index, inner_number in _select(choice, drawing.key, number, path):
        option = choice.options.items[index]
        inner_path = f"{path}={option.source}"
        text = render(option.body, drawing, inner_number, inner_path)
        texts.append(text)
    joined = choice.separator.join(texts)
    is_one = choice.most == 1
    drawing.chosen[name] = joined if is_one else texts
    return joined


def _select(choice: Choice, key: bytes, number: int, path: str) -> Sequence[tuple[int, int]]:
    """Select options: the index of each, with the number of its prompt."""
    if choice.is_drawn:
        return [(index, 0) for index in _draw(choice, key, path)]
    if not choice.is_single:
        return _combine(choice, number)
    totals = choice.options.totals
    index = bisect_right(totals, number)
    before = totals[index - 1] if index else 0
    return [(index, number - before)]


def _draw(choice: Choice, key: bytes, path: str) -> Sequence[int]:
    """Draw the number of options, then the options; return their indices in the drawn order."""
    count = choice.fewest
    if choice.most > choice.fewest:
        counts = np.arange(choice.fewest, choice.most + 1, dtype=np.uint64)
        draw_key = hash_text(f"{path}#", key)
        count += draw_options(counts, None, draw_key, 1)[0]
    if not count:
        return ()
    options = choice.options
    draw_key = hash_text(path, key)
    return draw_options(options.hashes, options.weights, draw_key, count)


def _combine(choice: Choice, number: int) -> Sequence[tuple[int, int]]:
    """Select the combination with this number, in the order of the options."""
    count = choice.fewest
    while number >= choice.ways[0][count]:
        number -= choice.ways[0][count]
        count += 1
    picked = []
    for index, option in enumerate(choice.options.items):
        if not count:
            break
        rest = choice.ways[index + 1][count - 1]
        with_option = count_texts(option.body) * rest
        if number >= with_option:
            number -= with_option
            continue
        inner_number, number = divmod(number, rest)
        picked.append((index, inner_number))
        count -= 1
    return picked
