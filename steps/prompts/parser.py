"""Parse a template: text with columns, wildcards, choices and variables.

The language is the deterministic and bounded part of sd-dynamic-prompts. docs/prompts.md has
examples.
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
MAX_DEPTH = 16  # of nested choices, also through wildcard files
MAX_WEIGHT = 10**6
MAX_WEIGHT_DIGITS = 20
ONE = Fraction(1)
ESCAPED = "\\{}|$_%#"

COLUMN = re.compile(r"\{\{([^{}|$]*)\}\}")
COMMENT = re.compile(r"[^\S\n]*#[^\n]*")
# The number of options and their separator: {2$$a|b}, {1-3$$ and $$a|b|c}.
NUMBERS = re.compile(r"\s*(\d{0,6})(-?)(\d{0,6})\$\$(?:([^${}]*)\$\$)?")
SAMPLING_MARK = re.compile(r"\s*([~!@])")
VARIABLE = re.compile(r"\$\{\s*(\w+)\s*(=!|[}=?:])?")
VARIABLE_OPERATORS = ("=!", "}", "=")
WEIGHT = re.compile(r"\s*([-+]?[\d.]+)::")
WILDCARD = re.compile(r"__([~!@]?)([\w./*-]+?)__")
LINE_BREAK = re.compile(r"\s*\n\s*")  # with surrounding white space, becomes one space
SPECIAL = re.compile(r"[\\{}|$%\n]|__")

# Choices are combined or drawn. Within a drawn choice, marks such as {!a|b} have no effect.
Mode: TypeAlias = Literal["all", "random", "drawn"]


class WildcardReader(Protocol):
    """Reader of the options of wildcards.

    `columns` collects the columns that the parsed templates and lines name.
    """

    columns: set[str]

    def read_options(self, wildcard: str, mode: Mode, depth: int) -> Options:
        """Read the options of a wildcard at a depth of choices. Raises TemplateMistake."""


def parse_template(
    text: str, wildcards: WildcardReader | None = None, mode: Mode = "all"
) -> Template:
    """Parse a template. Without `wildcards`, any name is accepted. Raises TemplateMistake."""
    return _Parser(text, wildcards, mode).parse_rest()


def parse_option(
    line: str, number: int, wildcards: WildcardReader, mode: Mode, depth: int
) -> Option:
    """Parse an option from a line of a wildcard file. Raises TemplateMistake."""
    parser = _Parser(line, wildcards, mode, depth, first_line=number)
    weight = parser.parse_weight()
    return Option(parser.rest.strip(), weight, _strip(parser.parse_rest()))


class _Parser:
    """A recursive descent parser that reads a template once."""

    def __init__(
        self,
        text: str,
        wildcards: WildcardReader | None,
        mode: Mode,
        depth: int = 0,
        first_line: int | None = None,
    ) -> None:
        """Take the text. With `first_line`, the text is that line of a wildcard file."""
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
        """The text that remains to be parsed."""
        return self._text[self._position :]

    def parse_rest(self) -> Template:
        template = self._parse_until("")
        if self.rest:
            raise self._mistake("this } closes nothing; write \\} for a brace")
        return template

    def _parse_until(self, stop: str) -> Template:
        """Parse pieces up to the character `stop` or a closing brace."""
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
        """Skip a comment line, which begins with #. Return whether the pieces end here."""
        is_at_start = self._position == 0 or self._text[self._position - 1] == "\n"
        comment = self._match(COMMENT) if is_at_start and not self._is_line else None
        if comment is not None:
            self._position = comment.end()
        return self._peek() in ("", "}", stop)

    def _parse_piece(self) -> Piece | str:
        """Parse the piece that begins here, or the text up to the next possible piece."""
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
        """Parse the text up to the next special character, or a single line break."""
        if self._peek() == "\n":
            return self._take(self._position + 1)
        special = SPECIAL.search(self._text, self._position + 1)
        if special is None:
            return self._take(len(self._text))
        return self._take(special.start())

    def _peek(self, count: int = 1) -> str:
        """Return the next characters; fewer at the end."""
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
        """Parse the inside of a choice or value in the block, in `mode` and one level deeper."""
        outer = self._mode
        self._mode = mode
        self._depth += 1
        yield
        self._mode = outer
        self._depth -= 1

    @contextmanager
    def _place_mistakes(self, position: int) -> Iterator[None]:
        """Report mistakes in the block at this position."""
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
        """Parse the number of options and their separator."""
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
        """Parse the weight at the beginning of an option; 1 if it has none."""
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
        """Return the mode within a choice: by its mark, or else the mode around it."""
        if mark == "@":
            raise self._mistake("@ takes options in turn, which depends on other rows; remove it")
        if self._mode == "drawn" or mark == "~":
            return "drawn"
        if mark == "!":
            return "all"
        return "drawn" if self._mode == "random" else "all"

    def _close(self, start: int) -> None:
        """Skip the brace that closes the piece at `start`."""
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
    """Return the wildcard that is the whole single option, as in {2$$__name__}, and its lines."""
    match option.body:
        case (Choice(is_single=True) as wildcard,) if wildcard.name != CHOICE_NAME:
            return wildcard.name, wildcard.options
    raise TemplateMistake(
        "this choice has one option; write {{ name }} for a column, \\{ for a brace"
    )


def _strip(template: Template) -> Template:
    """Strip white space at the beginning and end of a template."""
    match template:
        case (Text(text), *pieces):
            template = (Text(text.lstrip()), *pieces)
    match template:
        case (*pieces, Text(text)):
            template = (*pieces, Text(text.rstrip()))
    return template
