"""Settings in a YAML file: the place of each, and a sentence for each mistake in them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

import yaml
from pydantic import ValidationError

from imagekiln.steps.errors import BadInput, first_line
from imagekiln.steps.job.fields import Settings
from imagekiln.steps.job.mistakes import describe_mistakes
from imagekiln.steps.job.origin import SettingPath, format_path
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import MAX_TEXT_BYTES, decode_text, resolve_path

S = TypeVar("S", bound=Settings)
# PyYAML raises others than its own for values that are not what their tag says, for characters
# beyond Unicode, and for endless brackets.
YAML_ERRORS = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def load_yaml(text: str) -> object:
    """The plain values in a YAML text. Raises YAML_ERRORS."""
    return yaml.safe_load(text)


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
        node = yaml.compose(text, Loader=yaml.SafeLoader)
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
) -> S:
    """The group of settings with these plain values.

    `name` is the file, `locations` the place of each setting. Raises BadInput with a sentence for
    each mistake.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise BadInput(*describe_mistakes(kind, error, values, name, locations)) from error


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
