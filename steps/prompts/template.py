"""The syntax tree of a template: its pieces, and the number of prompts that they give.

A template is parsed once, with the lines of the wildcards that it names.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TypeAlias

from imagekiln.steps.prompts.draws import Floats, Hashes, hash_texts, make_weights

MAX_COUNT = 10**18  # counts are not exact beyond
MAX_PICKED = 100  # options of one choice
SEPARATOR = ", "
CHOICE_NAME = "{}"


class TemplateMistake(Exception):
    """A mistake in a template and its place: `line 1, character 5: ...`, without a full stop."""


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text."""

    text: str


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """`{{ name }}`: the value of a column of the table, never read as a template."""

    name: str


@dataclass(frozen=True, slots=True)
class Variable:
    """`${name}`: the value that was assigned to a variable before."""

    name: str


@dataclass(frozen=True, slots=True)
class VariableAssignment:
    """`${name=!value}`: chooses a variable's value once for the whole prompt, and renders nothing.

    `label` distinguishes it from sibling pieces of the same name, as in `Choice`.
    """

    name: str
    value: "Template"
    label: str = ""

    @property
    def count(self) -> int:
        """The number of its values."""
        return count_texts(self.value)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a choice. `source` is its source text without the weight."""

    source: str
    weight: Fraction
    body: "Template"


@dataclass(frozen=True)
class Options:
    """The options of a choice, or the lines of a wildcard, distinct and of weights above 0."""

    items: tuple[Option, ...]

    @cached_property
    def hashes(self) -> Hashes:
        """The hashes by which options are drawn."""
        return hash_texts([option.source for option in self.items])

    @cached_property
    def weights(self) -> Floats | None:
        """The weights; None if all are equal."""
        return make_weights([option.weight for option in self.items])

    @cached_property
    def totals(self) -> Sequence[int]:
        """The cumulative numbers of prompts of the options."""
        return [*accumulate(count_texts(option.body) for option in self.items)]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The number of options of a choice, and their separator. If `most` is None, up to all."""

    fewest: int
    most: int | None
    separator: str


ONE_OPTION = Numbers(1, 1, SEPARATOR)


@dataclass(frozen=True)
class Choice:
    """`{a|b}` or `__name__`: from `fewest` to `most` of the options, joined.

    Options are drawn, or each combination is used in turn. `name` is the wildcard's name, or `{}`.
    """

    name: str
    options: Options
    fewest: int
    most: int
    separator: str
    is_drawn: bool
    label: str = ""

    @property
    def is_single(self) -> bool:
        """Return whether it always has exactly one option."""
        return self.fewest == self.most == 1

    @cached_property
    def count(self) -> int:
        """The number of its values; 1 if it is drawn."""
        if self.is_drawn:
            return 1
        if self.is_single:
            return min(self.options.totals[-1], MAX_COUNT)
        return min(sum(self.ways[0][self.fewest :]), MAX_COUNT)

    @cached_property
    def ways(self) -> Sequence[Sequence[int]]:
        """The number of values of `n` options from index `i` on, as `ways[i][n]`."""
        row = [1] + [0] * self.most
        rows = [row]
        for option in reversed(self.options.items):
            count = count_texts(option.body)
            row = [1] + [
                min(row[number] + row[number - 1] * count, MAX_COUNT)
                for number in range(1, self.most + 1)
            ]
            rows.append(row)
        return rows[::-1]


Piece: TypeAlias = Text | ColumnReference | Variable | VariableAssignment | Choice
Template: TypeAlias = tuple[Piece, ...]


def make_options(options: Iterable[Option]) -> Options:
    """Merge equal options and their weights. Raises TemplateMistake if there are none."""
    unique: dict[str, Option] = {}
    for option in options:
        earlier = unique.get(option.source)
        if earlier is not None:
            option = Option(option.source, earlier.weight + option.weight, option.body)
        unique[option.source] = option
    likely = tuple(option for option in unique.values() if option.weight)
    if not likely:
        raise TemplateMistake("all options have the weight 0; give one another")
    return Options(likely)


def make_choice(name: str, options: Options, numbers: Numbers, is_drawn: bool) -> Choice:
    """Build a choice among these options. Raises TemplateMistake if it exceeds the limits."""
    available = len(options.items)
    most = available if numbers.most is None else min(numbers.most, available)
    if most > MAX_PICKED:
        raise TemplateMistake(f"chooses up to {most} options; name the most, such as 1-3$$")
    fewest = min(numbers.fewest, most)
    return Choice(name, options, fewest, most, numbers.separator, is_drawn)


def count_texts(template: Template) -> int:
    """Count the prompts of a template, up to `MAX_COUNT`. Drawn choices count as one."""
    counts = [piece.count for piece in template if isinstance(piece, VariableAssignment | Choice)]
    return min(prod(counts), MAX_COUNT)
