"""Reads a template: text with columns, wildcards, choices and variables.

It is the part of sd-dynamic-prompts' language that always means the same and cannot run away:
docs/prompts.md has it by example.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from typing import Literal, Protocol, TypeAlias

from imagekiln.steps.prompts.template import (
    CHOICE_NAME,
    ONE_OPTION,
    SEPARATOR,
    Choice,
    ColumnReference,
    Numbers,
    Option,
    Options,
    Piece,
    Template,
    TemplateMistake,
    Text,
    Variable,
    VariableAssignment,
    make_choice,
    make_options,
)

MAX_TEMPLATE_CHARS = 20_000
MAX_DEPTH = 16  # of choices within choices, also by way of wildcard files
MAX_WEIGHT = 10**6
MAX_WEIGHT_DIGITS = 20
ONE = Fraction(1)
ESCAPED = "\\{}|$_%#"

COLUMN = re.compile(r"\{\{([^{}|$]*)\}\}")
COMMENT = re.compile(r"[^\S\n]*#[^\n]*")
# How many options, and what joins them: {2$$a|b}, {1-3$$ and $$a|b|c}.
NUMBERS = re.compile(r"\s*(\d{0,6})(-?)(\d{0,6})\$\$(?:([^${}]*)\$\$)?")
SAMPLING_MARK = re.compile(r"\s*([~!@])")
VARIABLE = re.compile(r"\$\{\s*(\w+)\s*(=!|[}=?:])?")
VARIABLE_OPERATORS = ("=!", "}", "=")
WEIGHT = re.compile(r"\s*([-+]?[\d.]+)::")
WILDCARD = re.compile(r"__([~!@]?)([\w./*-]+?)__")
LINE_BREAK = re.compile(r"\s*\n\s*")  # with the white space around it, one blank
SPECIAL = re.compile(r"[\\{}|$%\n]|__")

# Choices are combined or drawn. Within what is drawn, marks such as {!a|b} change nothing.
Mode: TypeAlias = Literal["all", "random", "drawn"]


class WildcardReader(Protocol):
    """Reader of the options behind wildcards.

    `columns` are those that the templates and lines that it was read for name.
    """

    columns: set[str]

    def read_options(self, wildcard: str, mode: Mode, depth: int) -> Options:
        """The options of a wildcard at a depth of choices. Raises TemplateMistake."""


def parse_template(
    text: str, wildcards: WildcardReader | None = None, mode: Mode = "all"
) -> Template:
    """The pieces of a template. Without `wildcards`, any are right. Raises TemplateMistake."""
    return _Parser(text, wildcards, mode).parse_rest()


def parse_option(
    line: str, number: int, wildcards: WildcardReader, mode: Mode, depth: int
) -> Option:
    """The option that a line of a wildcard file is. Raises TemplateMistake."""
    parser = _Parser(line, wildcards, mode, depth, first_line=number)
    weight = parser.parse_weight()
    return Option(parser.rest.strip(), weight, _strip(parser.parse_rest()))


class _Parser:
    """Reads a text from its beginning to its end, once."""

    def __init__(
        self,
        text: str,
        wildcards: WildcardReader | None,
        mode: Mode,
        depth: int = 0,
        first_line: int | None = None,
    ) -> None:
        """Take the text; with `first_line`, it is that line of a wildcard file."""
        self._text = text
        self._position = 0
        self._wildcards = wildcards
        self._mode = mode
        self._depth = depth
        self._first_line = first_line or 1
        self._is_line = first_line is not None
        self._variables: set[str] = set()
        if len(text) > MAX_TEMPLATE_CHARS:
            raise self._mistake(f"has over {MAX_TEMPLATE_CHARS} characters; shorten it")

    @property
    def rest(self) -> str:
        """The text that is not read yet."""
        return self._text[self._position :]

    def parse_rest(self) -> Template:
        template = self._parse_until("")
        if self.rest:
            raise self._mistake("this } closes nothing; write \\} for a brace")
        return template

    def _parse_until(self, stop: str) -> Template:
        """The pieces up to the character `stop`, or a brace that closes."""
        pieces: list[Piece] = []
        labels: Counter[str] = Counter()
        literal = ""
        while not self._is_at_end(stop):
            piece = self._parse_piece()
            if isinstance(piece, str):
                literal += piece
                continue
            if isinstance(piece, VariableAssignment | Choice):
                labels[piece.name] += 1
                piece = replace(piece, label=f"{piece.name}#{labels[piece.name]}")
            pieces += [Text(LINE_BREAK.sub(" ", literal)), piece] if literal else [piece]
            literal = ""
        return (*pieces, Text(LINE_BREAK.sub(" ", literal))) if literal else tuple(pieces)

    def _is_at_end(self, stop: str) -> bool:
        """Skip a comment, a line that begins with #, and look for what ends the pieces."""
        is_at_start = self._position == 0 or self._text[self._position - 1] == "\n"
        comment = self._match(COMMENT) if is_at_start and not self._is_line else None
        if comment is not None:
            self._position = comment.end()
        return self._peek() in ("", "}", stop)

    def _parse_piece(self) -> Piece | str:
        """The piece that begins here, or the text up to the next that may be one."""
        match self._peek(2):
            case "{{":
                column = self._match(COLUMN)
                if column is not None:
                    return self._parse_column(column)
            case "${":
                return self._parse_variable()
            case "%{":
                raise self._mistake("%{...$$...} wraps texts, which is not supported; write \\%{")
            case "__":
                return self._parse_wildcard()
        match self._peek():
            case "\\":
                return self._parse_escape()
            case "{":
                return self._parse_choice()
        return self._parse_text()

    def _parse_text(self) -> str:
        """The text up to what may be something else; of a line break, that alone."""
        if self._peek() == "\n":
            return self._take(self._position + 1)
        special = SPECIAL.search(self._text, self._position + 1)
        if special is None:
            return self._take(len(self._text))
        return self._take(special.start())

    def _peek(self, count: int = 1) -> str:
        """The next characters; fewer at the end."""
        return self._text[self._position : self._position + count]

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.match(self._text, self._position)

    def _take(self, end: int) -> str:
        text = self._text[self._position : end]
        self._position += len(text)
        return text

    def _parse_escape(self) -> str:
        text = self._take(self._position + 2)
        escaped = text[1:]
        if escaped and escaped in ESCAPED:
            return escaped
        return text

    def _parse_column(self, column: re.Match[str]) -> ColumnReference:
        name = column[1].strip()
        if not name:
            raise self._mistake("{{ }} names no column; write {{ name }}")
        self._position = column.end()
        if self._wildcards is not None:
            self._wildcards.columns.add(name)
        return ColumnReference(name)

    def _parse_variable(self) -> Piece:
        variable = self._match(VARIABLE)
        if variable is None or variable[2] not in VARIABLE_OPERATORS:
            raise self._mistake("${ begins no ${name} or ${name=!value}; write \\$ for a dollar")
        name, operator = variable.groups()
        if operator == "}":
            if name not in self._variables:
                raise self._mistake(f"variable {name} has no value yet; write ${{{name}=!value}}")
            self._position = variable.end()
            return Variable(name)
        if self._depth:
            raise self._mistake("variables are assigned at the top of a template alone; move it")
        if operator == "=":
            raise self._mistake(f"a variable has one value in a prompt; write ${{{name}=!value}}")
        start = self._position
        self._position = variable.end()
        with self._inside(self._mode):
            value = _strip(self._parse_until(""))
        self._close(start)
        self._variables.add(name)
        return VariableAssignment(name, value)

    def _parse_wildcard(self) -> Choice:
        wildcard = self._match(WILDCARD)
        if wildcard is None:
            raise self._mistake(
                "__ begins no wildcard such as __name__, whose name has letters, digits and . / - "
                "_ *; write \\_\\_ for underscores"
            )
        mark, name = wildcard.groups()
        mode = self._choose_mode(mark)
        with self._place_mistakes(self._position):
            options = Options((Option("", ONE, ()),))
            if self._wildcards is not None:
                options = self._wildcards.read_options(name, mode, self._depth + 1)
            choice = make_choice(name, options, ONE_OPTION, mode == "drawn")
        self._position = wildcard.end()
        return choice

    def _parse_choice(self) -> Choice:
        if self._depth >= MAX_DEPTH:
            raise self._mistake(f"choices are nested over {MAX_DEPTH} deep; flatten them")
        start = self._position
        self._position += 1
        mark = self._match(SAMPLING_MARK)
        if mark is not None:
            self._position = mark.end()
        mode = self._choose_mode("" if mark is None else mark[1])
        numbers = self._parse_numbers()
        with self._inside(mode):
            options = [self._parse_choice_option()]
            while self._peek() == "|":
                self._position += 1
                options.append(self._parse_choice_option())
        self._close(start)
        with self._place_mistakes(start):
            name, choices = CHOICE_NAME, make_options(options)
            if len(options) == 1:
                name, choices = _require_wildcard(options[0])
            return make_choice(name, choices, numbers, mode == "drawn")

    @contextmanager
    def _inside(self, mode: Mode) -> Iterator[None]:
        """Read what is within a choice or a value."""
        outer = self._mode
        self._mode = mode
        self._depth += 1
        yield
        self._mode = outer
        self._depth -= 1

    @contextmanager
    def _place_mistakes(self, position: int) -> Iterator[None]:
        """Say of a mistake that is found later that it is at this position."""
        try:
            yield
        except TemplateMistake as mistake:
            self._position = position
            raise self._mistake(str(mistake)) from mistake

    def _parse_choice_option(self) -> Option:
        weight = self.parse_weight()
        start = self._position
        body = _strip(self._parse_until("|"))
        return Option(self._text[start : self._position].strip(), weight, body)

    def _parse_numbers(self) -> Numbers:
        """The number of options, and the text that joins them."""
        numbers = self._match(NUMBERS)
        if numbers is None:
            return ONE_OPTION
        low, dash, high, separator = numbers.groups()
        if not low and not high:
            raise self._mistake("$$ has no number of options before it; write {2$$a|b|c}")
        fewest = int(low or 1)
        most: int | None = fewest
        if high:
            most = int(high)
        elif dash:
            most = None
        if most is not None and most < fewest:
            raise self._mistake(f"chooses from {fewest} to {most} options; write {most}-{fewest}")
        self._position = numbers.end()
        return Numbers(fewest, most, SEPARATOR if separator is None else separator)

    def parse_weight(self) -> Fraction:
        """The weight that an option begins with, or else 1."""
        weight = self._match(WEIGHT)
        if weight is None:
            return ONE
        digits = weight[1]
        value = None
        if len(digits) <= MAX_WEIGHT_DIGITS:
            with suppress(ValueError):
                value = Fraction(digits)
        if value is None or not 0 <= value <= MAX_WEIGHT:
            raise self._mistake(f"a weight is a number from 0 to {MAX_WEIGHT}, such as 2::red")
        self._position = weight.end()
        return value

    def _choose_mode(self, mark: str) -> Mode:
        """The mode within a choice: by its mark, or else that of what is around it."""
        if mark == "@":
            raise self._mistake("@ takes options in turn, which depends on other rows; remove it")
        if self._mode == "drawn" or mark == "~":
            return "drawn"
        if mark == "!":
            return "all"
        return "drawn" if self._mode == "random" else "all"

    def _close(self, start: int) -> None:
        """Pass the brace that closes what began at `start`."""
        if self._peek() != "}":
            self._position = start
            raise self._mistake("this brace is never closed; add }, or write \\{ for a brace")
        self._position += 1

    def _mistake(self, problem: str) -> TemplateMistake:
        before = self._text[: self._position]
        line = self._first_line + before.count("\n")
        character = len(before) - before.rfind("\n")
        return TemplateMistake(f"line {line}, character {character}: {problem}")


def _require_wildcard(option: Option) -> tuple[str, Options]:
    """The wildcard that is all of the only option, as in {2$$__name__}, and its lines."""
    match option.body:
        case (Choice(is_single=True) as wildcard,) if wildcard.name != CHOICE_NAME:
            return wildcard.name, wildcard.options
    raise TemplateMistake(
        "this choice has one option; write {{ name }} for a column, \\{ for a brace"
    )


def _strip(template: Template) -> Template:
    """The template without white space at its beginning and end."""
    match template:
        case (Text(text), *pieces):
            template = (Text(text.lstrip()), *pieces)
    match template:
        case (*pieces, Text(text)):
            template = (*pieces, Text(text.rstrip()))
    return template
