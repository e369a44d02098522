"""The template language: text with columns, wildcards, choices and variables.

It is the part of sd-dynamic-prompts' language that always means the same and cannot run away:
docs/prompts.md has it by example. A template is parsed into a tree of the nodes below.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

MAX_TEMPLATE_CHARS = 20_000
MAX_DEPTH = 16  # of choices within choices, also by way of wildcard files
MAX_PICKED = 100  # options of one choice
MAX_WEIGHT = 10**6
SEPARATOR = ", "
MAX_WEIGHT_DIGITS = 20
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
SPECIAL = re.compile(r"[\\{}|$%\n]|__")

# How a choice is sampled: as the job says, every combination, or at random.
Sampling = Literal["default", "all", "random"]
SAMPLING_MARKS: dict[str, Sampling] = {"": "default", "!": "all", "~": "random"}


class TemplateMistake(Exception):
    """What is wrong with a template, and where: `line 1, character 5: ...`, without a full stop."""


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
    """`${name=!value}`: chooses the value once for the whole prompt, and leaves no text."""

    name: str
    value: "Template"


@dataclass(frozen=True, slots=True)
class Wildcard:
    """`__name__`: one of the lines of the wildcard files of that name; `place` is for messages."""

    name: str
    sampling: Sampling
    place: str


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a choice. `source` is as it was written, without its weight."""

    source: str
    weight: Fraction
    body: "Template"


@dataclass(frozen=True, slots=True)
class Choice:
    """`{a|b}`: from `fewest` to `most` of the options, joined; `most` is None where it is all."""

    options: tuple[Option, ...]
    sampling: Sampling
    place: str
    fewest: int = 1
    most: int | None = 1
    separator: str = SEPARATOR

    @property
    def only_wildcard(self) -> Wildcard | None:
        """The wildcard that is all of the only option, as in {2$$__name__}; None without."""
        option, *others = self.options
        if others or len(option.body) != 1:
            return None
        node = option.body[0]
        return node if isinstance(node, Wildcard) else None


Node: TypeAlias = Text | ColumnReference | Variable | VariableAssignment | Wildcard | Choice
Template: TypeAlias = tuple[Node, ...]


def parse_template(text: str) -> Template:
    """The nodes of a template. Raises TemplateMistake."""
    if len(text) > MAX_TEMPLATE_CHARS:
        raise TemplateMistake(f"line 1: has over {MAX_TEMPLATE_CHARS} characters; shorten it")
    return _Parser(text).parse()


def parse_option(line: str, number: int) -> Option:
    """The option that a line of a wildcard file is. Raises TemplateMistake."""
    if len(line) > MAX_TEMPLATE_CHARS:
        raise TemplateMistake(f"line {number}: has over {MAX_TEMPLATE_CHARS} characters")
    return _Parser(line, number).parse_option()


class _Parser:
    """Reads a text from its beginning to its end, once."""

    def __init__(self, text: str, first_line: int | None = None) -> None:
        """Take the text; with `first_line`, it is that line of a wildcard file."""
        self._text = text
        self._position = 0
        self._first_line = first_line or 1
        self._is_line = first_line is not None
        self._variables: set[str] = set()

    def parse(self) -> Template:
        template = self._parse_until("", depth=0)
        if self._position < len(self._text):
            raise self._mistake("this } closes nothing; write \\} for a brace")
        return template

    def parse_option(self) -> Option:
        weight = self._parse_weight()
        source = self._text[self._position :].strip()
        return Option(source, weight, _strip(self.parse()))

    def _parse_until(self, stops: str, depth: int) -> Template:
        """The nodes up to one of the characters `stops`, or a brace that closes."""
        nodes: list[Node] = []
        literal = ""
        while self._position < len(self._text):
            self._skip_comment(depth)
            character = self._peek()
            if character in ("", "}", stops):
                break
            node = self._parse_node(depth)
            if isinstance(node, str):
                literal += node
                continue
            if literal:
                nodes.append(Text(_fold_lines(literal)))
            literal = ""
            nodes.append(node)
        if literal:
            nodes.append(Text(_fold_lines(literal)))
        return tuple(nodes)

    def _skip_comment(self, depth: int) -> None:
        """Skip a line that begins with #. Within a line of a wildcard file, there is none."""
        before = self._text[: self._position]
        is_at_start = not before or before.endswith("\n")
        is_option = self._is_line and depth == 0
        if not is_at_start or is_option:
            return
        comment = self._match(COMMENT)
        if comment is not None:
            self._position = comment.end()

    def _parse_node(self, depth: int) -> Node | str:
        """The node that begins here, or the text up to the next that may be one."""
        match self._peek(2):
            case "{{":
                column = self._match(COLUMN)
                return self._parse_choice(depth) if column is None else self._parse_column(column)
            case "${":
                return self._parse_variable(depth)
            case "%{":
                raise self._mistake("%{...$$...} wraps texts, which is not supported; write \\%{")
            case "__":
                return self._parse_wildcard()
        match self._peek():
            case "\\":
                return self._parse_escape()
            case "{":
                return self._parse_choice(depth)
        return self._parse_text()

    def _parse_text(self) -> str:
        """The text up to what may be something else; of a line break, that alone."""
        if self._peek() == "\n":
            return self._take(self._position + 1)
        special = SPECIAL.search(self._text, self._position + 1)
        end = len(self._text)
        if special is not None:
            end = special.start()
        return self._take(end)

    def _peek(self, count: int = 1) -> str:
        """The next characters; fewer at the end."""
        end = self._position + count
        return self._text[self._position : end]

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.match(self._text, self._position)

    def _take(self, end: int) -> str:
        text = self._text[self._position : end]
        self._position = end
        return text

    def _parse_escape(self) -> str:
        text = self._take(self._position + 2)
        escaped = text[1:]
        is_escape = escaped != "" and escaped in ESCAPED
        return escaped if is_escape else text

    def _parse_column(self, column: re.Match[str]) -> ColumnReference:
        name = column[1].strip()
        if not name:
            raise self._mistake("{{ }} names no column; write {{ name }}")
        self._position = column.end()
        return ColumnReference(name)

    def _parse_wildcard(self) -> Wildcard:
        wildcard = self._match(WILDCARD)
        if wildcard is None:
            raise self._mistake(
                "__ begins no wildcard such as __name__, whose name has letters, digits and . / - "
                "_ *; write \\_\\_ for underscores"
            )
        place = self._place()
        sampling = self._sampling(wildcard[1])
        self._position = wildcard.end()
        return Wildcard(wildcard[2], sampling, place)

    def _parse_variable(self, depth: int) -> Node:
        variable = self._match(VARIABLE)
        if variable is None or variable[2] not in VARIABLE_OPERATORS:
            raise self._mistake("${ begins no ${name} or ${name=!value}; write \\$ for a dollar")
        name = variable[1]
        operator = variable[2]
        if operator == "}":
            if name not in self._variables:
                raise self._mistake(f"variable {name} has no value yet; write ${{{name}=!value}}")
            self._position = variable.end()
            return Variable(name)
        if depth or self._is_line:
            raise self._mistake("variables are assigned at the top of a template alone; move it")
        if operator == "=":
            raise self._mistake(f"a variable has one value in a prompt; write ${{{name}=!value}}")
        start = self._position
        self._position = variable.end()
        value = _strip(self._parse_until("", depth + 1))
        self._close(start)
        self._variables.add(name)
        return VariableAssignment(name, value)

    def _parse_choice(self, depth: int) -> Choice:
        if depth >= MAX_DEPTH:
            raise self._mistake(f"choices are nested over {MAX_DEPTH} deep; flatten them")
        start = self._position
        place = self._place()
        self._position += 1
        mark = self._match(SAMPLING_MARK)
        sampling = self._sampling("" if mark is None else mark[1])
        if mark is not None:
            self._position = mark.end()
        fewest, most, separator = self._parse_numbers()
        options = [self._parse_choice_option(depth)]
        while self._peek() == "|":
            self._position += 1
            option = self._parse_choice_option(depth)
            options.append(option)
        self._close(start)
        choice = Choice(tuple(options), sampling, place, fewest, most, separator)
        if len(options) == 1 and choice.only_wildcard is None:
            self._position = start
            raise self._mistake(
                "this choice has one option; write {{ name }} for a column, \\{ for a brace"
            )
        return choice

    def _parse_choice_option(self, depth: int) -> Option:
        weight = self._parse_weight()
        start = self._position
        body = _strip(self._parse_until("|", depth + 1))
        return Option(self._text[start : self._position].strip(), weight, body)

    def _parse_numbers(self) -> tuple[int, int | None, str]:
        """The fewest and the most options, and what joins them."""
        numbers = self._match(NUMBERS)
        if numbers is None:
            return 1, 1, SEPARATOR
        low, dash, high, separator = numbers.groups()
        if not low and not high:
            raise self._mistake("$$ has no number of options before it; write {2$$a|b|c}")
        fewest = int(low or 1)
        most: int | None = fewest
        if high:
            most = int(high)
        elif dash:
            most = None
        if max(fewest, most or 0) > MAX_PICKED:
            raise self._mistake(f"chooses over {MAX_PICKED} options; choose fewer")
        if most is not None and most < fewest:
            raise self._mistake(f"chooses from {fewest} to {most} options; write {most}-{fewest}")
        self._position = numbers.end()
        if separator is None:
            separator = SEPARATOR
        return fewest, most, separator

    def _parse_weight(self) -> Fraction:
        weight = self._match(WEIGHT)
        if weight is None:
            return Fraction(1)
        digits = weight[1]
        value = None
        if len(digits) <= MAX_WEIGHT_DIGITS:
            with suppress(ValueError):
                value = Fraction(digits)
        if value is None or not 0 <= value <= MAX_WEIGHT:
            raise self._mistake(f"a weight is a number from 0 to {MAX_WEIGHT}, such as 2::red")
        self._position = weight.end()
        return value

    def _sampling(self, mark: str) -> Sampling:
        if mark == "@":
            raise self._mistake("@ takes options in turn, which depends on other rows; remove it")
        return SAMPLING_MARKS[mark]

    def _close(self, start: int) -> None:
        """Pass the brace that closes what began at `start`."""
        if self._peek() != "}":
            self._position = start
            raise self._mistake("this brace is never closed; add }, or write \\{ for a brace")
        self._position += 1

    def _place(self) -> str:
        before = self._text[: self._position]
        line = self._first_line + before.count("\n")
        _, _, start_of_line = before.rpartition("\n")
        character = len(start_of_line) + 1
        return f"line {line}, character {character}"

    def _mistake(self, problem: str) -> TemplateMistake:
        return TemplateMistake(f"{self._place()}: {problem}")


def _fold_lines(text: str) -> str:
    """The text on one line: a line break and the white space around it are one blank."""
    first, *rest = text.split("\n")
    if not rest:
        return first
    *inner, last = rest
    lines = [first.rstrip(), *(line.strip() for line in inner if line.strip()), last.lstrip()]
    return " ".join(lines)


def _strip(template: Template) -> Template:
    """The template without white space at its beginning and end."""
    if not template:
        return ()
    nodes = list(template)
    first = nodes[0]
    if isinstance(first, Text):
        nodes[0] = Text(first.text.lstrip())
    last = nodes[-1]
    if isinstance(last, Text):
        nodes[-1] = Text(last.text.rstrip())
    return tuple(nodes)
