"""A template as a tree: its pieces, and how many texts they can be.

A template is read into it once, with the lines of the wildcards that it names.
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
    """Text that stays as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """`{{ name }}`: the value of a column of the table, never read as a template."""

    name: str


@dataclass(frozen=True, slots=True)
class Variable:
    """`${name}`: the text that was assigned to a variable before."""

    name: str


@dataclass(frozen=True, slots=True)
class VariableAssignment:
    """`${name=!value}`: chooses the value once for the whole prompt, and leaves no text.

    `label` tells it from other pieces of its name beside it, as that of a choice does.
    """

    name: str
    value: "Template"
    label: str = ""

    @property
    def count(self) -> int:
        """The values that it can be."""
        return count_texts(self.value)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a choice. `source` is as it was written, without its weight."""

    source: str
    weight: Fraction
    body: "Template"


@dataclass(frozen=True)
class Options:
    """The options of a choice, or the lines of a wildcard: none twice, none of weight 0."""

    items: tuple[Option, ...]

    @cached_property
    def hashes(self) -> Hashes:
        """Hashes by which options are chosen."""
        return hash_texts([option.source for option in self.items])

    @cached_property
    def weights(self) -> Floats | None:
        """The weights; None if all are equal."""
        return make_weights([option.weight for option in self.items])

    @cached_property
    def totals(self) -> Sequence[int]:
        """For each option, the texts that it and those before it can be."""
        return [*accumulate(count_texts(option.body) for option in self.items)]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The number of options of a choice, and their separator. Without `most`, up to all of them."""

    fewest: int
    most: int | None
    separator: str


ONE_OPTION = Numbers(1, 1, SEPARATOR)


@dataclass(frozen=True)
class Choice:
    """`{a|b}` or `__name__`: from `fewest` to `most` of the options, joined.

    They are drawn, or each combination comes in turn. `name` is that of the wildcard, or `{}`.
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
        """Return whether it is always one option."""
        return self.fewest == self.most == 1

    @cached_property
    def count(self) -> int:
        """The texts that it can be; one if it is random."""
        if self.is_drawn:
            return 1
        if self.is_single:
            return min(self.options.totals[-1], MAX_COUNT)
        return min(sum(self.ways[0][self.fewest :]), MAX_COUNT)

    @cached_property
    def ways(self) -> Sequence[Sequence[int]]:
        """In how many ways 0, 1, 2... options are texts: of all, of all but the first..."""
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
    """The options, equal ones with the sum of their weights. Raises TemplateMistake on none."""
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
    """A choice among these options. Raises TemplateMistake if it is not within bounds."""
    available = len(options.items)
    most = available if numbers.most is None else min(numbers.most, available)
    if most > MAX_PICKED:
        raise TemplateMistake(f"chooses up to {most} options; name the most, such as 1-3$$")
    fewest = min(numbers.fewest, most)
    return Choice(name, options, fewest, most, numbers.separator, is_drawn)


def count_texts(template: Template) -> int:
    """The number of texts of a template, without random choices."""
    counts = [piece.count for piece in template if isinstance(piece, VariableAssignment | Choice)]
    return min(prod(counts), MAX_COUNT)
