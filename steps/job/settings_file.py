"""Settings in a YAML file: the place of each, and a sentence for each mistake in them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

import yaml
from pydantic import ValidationError

from imagekiln.steps.errors import BadInput, cut_name, first_line
from imagekiln.steps.job.fields import Settings
from imagekiln.steps.job.introspection import SettingPath, format_path
from imagekiln.steps.job.validation_errors import describe_validation_errors
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import MAX_TEXT_BYTES, decode_text, resolve_path

S = TypeVar("S", bound=Settings)
# PyYAML raises a ValueError for an impossible date, a RecursionError for endless brackets.
YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)
MAX_SETTINGS = 500_000  # more than the longest tuning file has
MAX_INTEGER_BITS = 64
MAX_NUMBER_CHARS = 200  # YAML reads 1:1:1... to the base of 60, in a time that is quadratic
NUMBER_TAGS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
MAX_DEPTH = 32  # a parser takes time for each bracket that is open, at each of its tokens
# Of pydantic, which reports several for a setting that takes several types.
MAX_REPORTED_ERRORS = 50


class SettingsLoader(yaml.SafeLoader):
    """YAML of plain values, in which a short file cannot take long. Raises YAMLError."""

    _settings = 0
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read a value, unless too many lists and groups are around it."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            problem = "it is nested too deeply"
            mark = None if parent is None else parent.start_mark
            raise yaml.composer.ComposerError(None, None, problem, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def scan_flow_scalar_non_spaces(self, double: bool, start_mark: yaml.Mark) -> list[str]:
        """Read characters in quotes."""
        try:
            return super().scan_flow_scalar_non_spaces(double, start_mark)
        except (ValueError, OverflowError) as error:
            problem = "an escape is beyond the characters of Unicode"
            raise yaml.scanner.ScannerError(None, None, problem, start_mark) from error

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """The value of a node. Its tag may be any, such as that of a number for a word."""
        problem = f"a number has more than {MAX_NUMBER_CHARS} characters"
        if node.tag in NUMBER_TAGS and len(node.value) > MAX_NUMBER_CHARS:
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (LookupError, AttributeError, ArithmeticError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"{cut_name(str(node.value))!r} is no {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace merges by what they merge."""
        super().flatten_mapping(node)
        self._settings += len(node.value)
        if self._settings > MAX_SETTINGS:
            problem = f"it comes to more than {MAX_SETTINGS} settings"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """The integer in a node. A longer one has no use, and not all of Python can write it."""
        number = super().construct_yaml_int(node)
        if number.bit_length() > MAX_INTEGER_BITS:
            problem = f"a number has more than {MAX_INTEGER_BITS} bits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return number

    def refuse_set(self, node: yaml.MappingNode) -> None:
        """Raise ConstructorError: a set would pass for a list, in an order of each process."""
        problem = "a set has no order; write a list"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


SettingsLoader.add_constructor("tag:yaml.org,2002:int", SettingsLoader.construct_yaml_int)
SettingsLoader.add_constructor("tag:yaml.org,2002:set", SettingsLoader.refuse_set)


def load_yaml(text: str) -> object:
    """The plain values in a YAML text. Raises YAML_ERRORS."""
    return yaml.load(text, Loader=SettingsLoader)  # noqa: S506  # is a SafeLoader


def read_local_text(name: str, noun: str) -> str:
    """The text of a settings file on this machine; `noun` is what it should be, as "a job file".

    Raises Missing, BadInput where it is no text, TryAgain.
    """
    path = Path(resolve_path(name))
    with translate_errors(name):
        if path.is_dir():
            raise BadInput(f"{name or '.'}: is a folder. Choose {noun}.")
        with path.open("rb") as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    return decode_text(content, name, noun)


def parse_settings(
    text: str, name: str, required: str
) -> tuple[dict[str, object], dict[SettingPath, str]]:
    """The settings in a YAML text, and the file and line of each.

    `required` is what a file without any settings should have. Raises BadInput.
    """
    locations: dict[SettingPath, str] = {}
    try:
        node = yaml.compose(text, Loader=SettingsLoader)
        if not isinstance(node, yaml.MappingNode):
            raise BadInput(f"{name}: contains no settings. Write {required}.")
        _record_locations(node, (), name, locations, set())
        values = cast("dict[str, object]", load_yaml(text))
    except YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(str(error))
        raise BadInput(
            f"{name}{line}: is not valid YAML ({problem.removeprefix('but ')}). Correct the syntax."
        ) from error
    return values, locations


def validate_settings(
    kind: type[S],
    values: object,
    name: str,
    locations: Mapping[SettingPath, str],
    noun: str,
) -> S:
    """The group of settings with these plain values.

    `name` is the file, `locations` where each setting was set, and `noun` what they are together.
    Raises BadInput with a sentence for each mistake.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        errors = error.errors()[:MAX_REPORTED_ERRORS]
        sentences = describe_validation_errors(kind, errors, name, locations, noun)
        if error.error_count() > len(errors):
            sentences.append(f"{name}: has more mistakes than these. Correct these first.")
        raise BadInput(*sentences) from error


def _record_locations(
    node: yaml.Node,
    path: SettingPath,
    name: str,
    locations: dict[SettingPath, str],
    visited: set[int],
) -> None:
    """Record the line of every setting below `node`. Raises BadInput where one is set twice.

    An alias is followed once, so that aliases of aliases cost no more than they are long.
    """
    locations.setdefault(path, f"{name}:{node.start_mark.line + 1}")
    if id(node) in visited:
        return
    visited.add(id(node))

    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _record_locations(item, (*path, index), name, locations, visited)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):  # of aliases, its text might have no end
                problem = "found unhashable key"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            inner = (*path, key.value)
            line = key.start_mark.line + 1
            _record_location(inner, f"{name}:{line}", locations)
            _record_locations(value, inner, name, locations, visited)


def _record_location(path: SettingPath, location: str, locations: dict[SettingPath, str]) -> None:
    if path in locations:
        raise BadInput(
            f"{location}: {format_path(path)} is already set at {locations[path]}. "
            "Remove one of them."
        )
    locations[path] = location
