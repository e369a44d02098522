"""Settings in a YAML file: the line of each, and a sentence for each mistake in them."""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from imagekiln.steps.errors import BadInput, first_line
from imagekiln.steps.job.fields import Settings
from imagekiln.steps.runtime.sanitize import redact_urls
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import MAX_TEXT_BYTES, decode_text, resolve_path

S = TypeVar("S", bound=Settings)
SettingPath = tuple[str | int, ...]
Locations = Mapping[SettingPath, str]  # of each setting, such as job.yaml:12
SettingFields = Mapping[SettingPath, FieldInfo]
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
MAX_VALUE_CHARS = 60
MIN_LIKELY = 0.8  # similarity of a misspelt setting, which may be of another group
MIN_POSSIBLE = 0.6  # of the same group
DEFAULTS = "defaults"  # a value for all rows is meant more often than a column or a pass
MAX_SEARCHED_CHARS = 4000  # for URLs with credentials


def load_yaml(text: str) -> object:
    """The plain values in a YAML text. Raises YAML_ERRORS."""
    return yaml.safe_load(text)


def read_local_text(name: str, noun: str) -> str:
    """The text of a settings file on this machine; `noun` is what it should be, as "a job file".

    Raises Missing, BadInput if it is not text, TryAgain.
    """
    with translate_errors(name), Path(resolve_path(name)).open("rb") as file:
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
            f"{name}{line}: is not valid YAML ({problem}). Correct the syntax."
        ) from error
    return values, locations


def _record_locations(
    node: yaml.Node,
    path: SettingPath,
    name: str,
    locations: dict[SettingPath, str],
    visited: set[int],
) -> None:
    """Record the line of every setting below `node`. Raises BadInput if one is set twice.

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
            if not isinstance(key, yaml.ScalarNode):  # which no mapping can have as a key
                continue
            inner = (*path, key.value)
            location = f"{name}:{key.start_mark.line + 1}"
            if inner in locations:
                raise BadInput(
                    f"{location}: {format_path(inner)} is already set at {locations[inner]}. "
                    "Remove one of them."
                )
            locations[inner] = location
            _record_locations(value, inner, name, locations, visited)


def validate_settings(kind: type[S], values: object, name: str, locations: Locations) -> S:
    """The group of settings with these plain values; `name` is the file.

    Raises BadInput with a sentence for each mistake.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise BadInput(*_describe_mistakes(kind, error, values, name, locations)) from error


def format_path(path: SettingPath) -> str:
    """The path as people write it, such as gates.checks[0].name."""
    text = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path)
    return text.removeprefix(".")


def locate(path: SettingPath, locations: Locations) -> str | None:
    """The place of the setting, or else of the innermost group around it, as job.yaml:12."""
    inner_first = (path[:depth] for depth in range(len(path), -1, -1))
    return next((locations[each] for each in inner_first if each in locations), None)


def _describe_mistakes(
    root: type[BaseModel], error: ValidationError, values: object, name: str, locations: Locations
) -> list[str]:
    """A sentence for each wrong setting: pydantic has a mistake for each member of a union."""
    settings = dict(_iter_settings(root))
    problems: dict[SettingPath, list[str]] = {}
    for each in error.errors(include_url=False):
        path = _setting_path(each, values)
        problems.setdefault(path, []).append(_describe(settings, path, each))
    return [
        f"{locate(path, locations) or name}: {format_path(path) or 'the file'} "
        f"{', or '.join(dict.fromkeys(clauses))}."
        for path, clauses in problems.items()
        if not any(other[: len(path)] == path for other in problems if other != path)
    ]


def _setting_path(error: ErrorDetails, values: object) -> SettingPath:
    """The path of the setting, without the names that pydantic adds for members of a union."""
    path: SettingPath = ()
    for name in error["loc"]:
        try:
            values = values[name]  # type: ignore[index]
        except (LookupError, TypeError):
            continue
        path = (*path, name)
    if error["type"] == "missing":
        return (*path, error["loc"][-1])
    return (*path, "kind") if error["type"].startswith("union_tag_") else path


def _describe(settings: SettingFields, path: SettingPath, error: ErrorDetails) -> str:
    problem = error["msg"].replace("Input should", "it should").replace("tuple", "list")
    match error["type"]:
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case "extra_forbidden" | "invalid_key":
            return f"is not a setting; {_suggest_setting(settings, path)}"
        case "missing" | "union_tag_not_found":
            return "is missing; add it"
        case "union_tag_invalid":
            context = error["ctx"]
            return f'is "{context["tag"]}"; it should be one of {context["expected_tags"]}'
        case "model_type":
            problem = "it should be a group of settings"
        case "string_pattern_mismatch":
            problem = f"write {_describe_pattern(settings, error['ctx']['pattern'])}"
    return f"is {_format_value(error['input'])}; {_lower(problem)}"


def _describe_pattern(settings: SettingFields, pattern: str) -> str:
    """The description of a setting whose text must match this pattern, else the pattern."""
    for info in settings.values():
        if info.description and any(
            getattr(each, "pattern", None) == pattern for each in info.metadata
        ):
            return _lower(info.description.rstrip("."))
    return f"text that matches {pattern}"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _suggest_setting(settings: SettingFields, path: SettingPath) -> str:
    """The setting that was probably meant: the nearest of the same group, or of any."""
    last = str(path[-1])
    depth = min(len(path) - 1, 1)  # of what the groups beside it have in common with it
    own = [each for each in settings if each[:depth] == path[:depth] and len(each) > depth]
    beside = {str(each[-1]): (*path[:-1], each[-1]) for each in own if depth or len(each) == 1}
    if last in beside:
        return "here, it is of another kind: remove it, or change the kind"
    anywhere = {str(each[-1]): each for each in settings}
    anywhere |= {str(each[-1]): each for each in settings if each[0] == DEFAULTS}
    for names, similarity in ((beside, MIN_LIKELY), (anywhere, MIN_LIKELY), (beside, MIN_POSSIBLE)):
        for near in get_close_matches(last, names, n=1, cutoff=similarity):
            return f"write {format_path(names[near])}"
    return "remove it"


def _iter_settings(
    kind: type[BaseModel], place: SettingPath = ()
) -> Iterator[tuple[SettingPath, FieldInfo]]:
    """Each setting by its path, leaving out indexes and names that the user chooses."""
    for name, info in kind.model_fields.items():
        yield (*place, name), info
        for group in _groups_in(info.annotation):
            yield from _iter_settings(group, (*place, name))


def _groups_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for member in get_args(annotation):
        yield from _groups_in(member)


def _format_value(value: object) -> str:
    if isinstance(value, dict | list | tuple):
        return "a list or a group of settings"
    # Half of a URL is none whose credentials are known as such.
    text = json.dumps(value, ensure_ascii=False, default=str)[:MAX_SEARCHED_CHARS]
    return redact_urls(text)[:MAX_VALUE_CHARS]
