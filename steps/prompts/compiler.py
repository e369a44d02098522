"""Templates and their wildcard files made into recipes, checked and counted on the way."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

from imagekiln.steps.errors import BadInput
from imagekiln.steps.prompts import recipe
from imagekiln.steps.prompts.draws import hash_texts, make_weights
from imagekiln.steps.prompts.recipe import Options, Piece, Pieces, Recipe, Selection, Size, Ways
from imagekiln.steps.prompts.syntax import (
    MAX_DEPTH,
    MAX_PICKED,
    Choice,
    ColumnReference,
    Node,
    Option,
    Template,
    TemplateMistake,
    Text,
    Variable,
    VariableAssignment,
    Wildcard,
    parse_template,
)
from imagekiln.steps.prompts.wildcards import WildcardFiles, add_option

MAX_COUNT = 10**18  # counts are not exact beyond
MAX_SLOTS = 1000  # choices that are made for one prompt
MAX_WAYS = 1_000_000  # entries of the table by which several options are combined
CHOICE_NAME = "{}"
# Whether choices are combined or drawn; `random` is that of a template, whose marks may differ.
_Mode: TypeAlias = Literal["all", "random", "drawn"]


def make_recipe(
    template: str, where: str, wildcards: WildcardFiles, *, is_random: bool = False
) -> Recipe:
    """The recipe of a template, whose choices are combined or, with `is_random`, drawn.

    `where` is what messages call it. Raises BadInput, TryAgain.
    """
    compiler = _Compiler(wildcards)
    try:
        pieces = compiler.compile(parse_template(template), "random" if is_random else "all")
    except TemplateMistake as mistake:
        raise BadInput(f"{where}, {mistake}.") from mistake
    slots = pieces.size.slots
    if slots > MAX_SLOTS:
        raise BadInput(f"{where}: a prompt has up to {slots} choices, over {MAX_SLOTS}. Use fewer.")
    return Recipe(template, frozenset(compiler.columns), pieces)


class _Compiler:
    """Makes recipes' pieces of the nodes of templates."""

    def __init__(self, wildcards: WildcardFiles) -> None:
        self.columns: set[str] = set()
        self._wildcards = wildcards
        self._options: dict[tuple[str, _Mode], Options] = {}
        self._open: list[str] = []  # the wildcards around what is compiled

    def compile(self, template: Template, mode: _Mode) -> Pieces:
        """The pieces of a template. Raises TemplateMistake, BadInput, TryAgain."""
        pieces = []
        names: dict[str, int] = {}
        for node in template:
            piece = self._compile_node(node, mode)
            name = ""
            if isinstance(piece, Selection | recipe.AssignedValue):
                name = piece.name
            names[name] = names.get(name, 0) + 1
            place = f"{name}#{names[name]}"
            pieces.append((place, piece))
        sizes = [piece.size for _, piece in pieces]
        return Pieces(tuple(pieces), _combine_sizes(sizes))

    def _compile_node(self, node: Node, mode: _Mode) -> Piece:
        match node:
            case Text():
                return recipe.Literal(node.text)
            case ColumnReference():
                self.columns.add(node.name)
                return recipe.ColumnValue(node.name)
            case Variable():
                return recipe.VariableValue(node.name)
            case VariableAssignment():
                value = self.compile(node.value, mode)
                return recipe.AssignedValue(node.name, value, value.size)
            case Wildcard():
                mode = _mode_of(node, mode)
                choice = Choice((), node.sampling, node.place)
                return self._select(choice, node.name, self._expand(node, mode), mode)
            case Choice():
                return self._compile_choice(node, _mode_of(node, mode))

    def _compile_choice(self, node: Choice, mode: _Mode) -> Piece:
        wildcard = node.only_wildcard
        if wildcard is not None:  # several lines, none of them twice
            lines = self._expand(wildcard, mode)
            return self._select(node, wildcard.name, lines, mode)
        unique: dict[str, Option] = {}
        for option in node.options:
            add_option(unique, option)
        options = self._compile_options(unique.values(), node.place, mode)
        return self._select(node, CHOICE_NAME, options, mode)

    def _expand(self, node: Wildcard, mode: _Mode) -> Options:
        """The lines of a wildcard's files, once for all places that name it."""
        key = (node.name, mode)
        if key in self._options:
            return self._options[key]
        if node.name in self._open:
            circle = " > ".join([*self._open, node.name])
            raise TemplateMistake(f"{node.place}: wildcards name each other in a circle, {circle}")
        if len(self._open) >= MAX_DEPTH:
            raise TemplateMistake(f"{node.place}: wildcards are nested over {MAX_DEPTH} deep")
        self._open.append(node.name)
        lines = self._read_lines(node)
        try:
            options = self._compile_options(lines, node.place, mode)
        except TemplateMistake as mistake:
            raise TemplateMistake(f"{node.place}: in __{node.name}__, {mistake}") from mistake
        self._open.pop()
        self._options[key] = options
        return options

    def _read_lines(self, node: Wildcard) -> tuple[Option, ...]:
        try:
            return self._wildcards.read_options(node.name)
        except TemplateMistake as mistake:
            raise TemplateMistake(f"{node.place}: {mistake}") from mistake

    def _compile_options(self, options: Iterable[Option], place: str, mode: _Mode) -> Options:
        likely = [option for option in options if option.weight]
        if not likely:
            raise TemplateMistake(f"{place}: all options have the weight 0; give one another")
        bodies = tuple(self.compile(option.body, mode) for option in likely)
        sources = tuple(option.source for option in likely)
        weights = tuple(option.weight for option in likely)
        counts = (body.size.count for body in bodies)
        return Options(
            sources=sources,
            bodies=bodies,
            hashes=hash_texts(sources),
            weights=make_weights(weights),
            totals=tuple(accumulate(counts)),
        )

    def _select(self, node: Choice, name: str, options: Options, mode: _Mode) -> Selection:
        available = len(options.bodies)
        most = available if node.most is None else min(node.most, available)
        if most > MAX_PICKED:
            raise TemplateMistake(
                f"{node.place}: chooses up to {most} options; name the most, such as 1-3$$"
            )
        fewest = min(node.fewest, most)
        heights = [body.size.height for body in options.bodies]
        height = 1 + max(heights)
        if height > MAX_DEPTH:
            raise TemplateMistake(f"{node.place}: choices are nested over {MAX_DEPTH} deep")
        slots = sorted(body.size.slots for body in options.bodies)
        most_slots = 1 + sum(slots[available - most :])
        is_drawn = mode == "drawn"
        is_single = fewest == most == 1
        ways: Ways = ()
        if is_drawn:
            count = 1
        elif is_single:
            count = options.totals[-1]
        else:
            ways = _count_ways(node, options, most)
            count = sum(ways[0][fewest:])
        return Selection(
            name=name,
            options=options,
            fewest=fewest,
            most=most,
            separator=node.separator,
            size=Size(min(count, MAX_COUNT), min(most_slots, MAX_COUNT), height),
            is_drawn=is_drawn,
            ways=ways,
        )


def _mode_of(node: Choice | Wildcard, mode: _Mode) -> _Mode:
    """How a choice is made: its mark decides, or else what is around it; within a draw, by draw."""
    if mode == "drawn" or node.sampling == "random":
        return "drawn"
    if node.sampling == "all":
        return "all"
    return "drawn" if mode == "random" else "all"


def _count_ways(node: Choice, options: Options, most: int) -> Ways:
    """In how many ways 0, 1, 2... of the options are texts: of all, of all but the first..."""
    available = len(options.bodies)
    if available * most > MAX_WAYS:
        raise TemplateMistake(
            f"{node.place}: combines up to {most} of {available} options; choose fewer, or draw "
            "them, as in {~2$$a|b|c}"
        )
    row = [1] + [0] * most
    rows = [tuple(row)]
    for body in reversed(options.bodies):
        for number in range(most, 0, -1):
            with_option = row[number - 1] * body.size.count
            row[number] = min(row[number] + with_option, MAX_COUNT)
        rows.append(tuple(row))
    return tuple(reversed(rows))


def _combine_sizes(sizes: Sequence[Size]) -> Size:
    """The size of pieces that follow each other."""
    count = 1
    slots = 0
    height = 0
    for size in sizes:
        count = min(count * size.count, MAX_COUNT)
        slots = min(slots + size.slots, MAX_COUNT)
        height = max(height, size.height)
    return Size(count, slots, height)
