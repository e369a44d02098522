"""Settings in YAML files: parse them, and report each mistake with its line."""

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
# PyYAML also raises other errors: for values that do not match their tag, characters beyond
# Unicode, and deep nesting.
YAML_ERRORS = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
MAX_VALUE_CHARS = 60
MIN_LIKELY = 0.8  # minimum similarity of a misspelt setting in any group
MIN_POSSIBLE = 0.6  # the same in its own group
DEFAULTS = "defaults"  # suggested first: users mean it more often than a column or a pass
MAX_SEARCHED_CHARS = 4000  # searched for URLs with credentials


def load_yaml(text: str) -> object:
    """Load plain values from a YAML document. Raises YAML_ERRORS."""
    return yaml.safe_load(text)


def read_local_text(name: str, noun: str) -> str:
    """Read a local settings file. `noun` names its kind in messages, such as "a job file".

    Raises Missing, BadInput if it is not UTF-8, TryAgain.
    """
    with translate_errors(name), Path(resolve_path(name)).open("rb") as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    return decode_text(content, name, noun)


def parse_settings(
    text: str, name: str, required: str
) -> tuple[dict[str, object], dict[SettingPath, str]]:
    """Parse the settings in a YAML document. Returns them with the file and line of each.

    `required` describes required settings, for the message on an empty document. Raises BadInput.
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

    Each node is visited once, so that nested aliases take linear time.
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
            if not isinstance(key, yaml.ScalarNode):  # not hashable; rejected later
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
    """Validate plain values as settings of class `kind`. `name` is the file, for messages.

    Raises BadInput with a sentence for each mistake.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise BadInput(*_describe_mistakes(kind, error, values, name, locations)) from error


def format_path(path: SettingPath) -> str:
    """Format the path of a setting, such as `gates.checks[0].name`."""
    text = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path)
    return text.removeprefix(".")


def locate(path: SettingPath, locations: Locations) -> str | None:
    """Return the location of a setting or its innermost known group, such as `job.yaml:12`."""
    inner_first = (path[:depth] for depth in range(len(path), -1, -1))
    return next((locations[each] for each in inner_first if each in locations), None)


def _describe_mistakes(
    root: type[BaseModel], error: ValidationError, values: object, name: str, locations: Locations
) -> list[str]:
    """Return a sentence per wrong setting. Pydantic reports one error per member of a union."""
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
    """Return the path of a setting, without names that pydantic adds for members of a union."""
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
    """Return the description of a setting with this pattern, or else the pattern."""
    for info in settings.values():
        if info.description and any(
            getattr(each, "pattern", None) == pattern for each in info.metadata
        ):
            return _lower(info.description.rstrip("."))
    return f"text that matches {pattern}"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _suggest_setting(settings: SettingFields, path: SettingPath) -> str:
    """Suggest the setting with the most similar name, in the same group or in any group."""
    last = str(path[-1])
    depth = min(len(path) - 1, 1)  # length of the prefix shared with sibling groups
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
    """Yield each setting with its path, without indexes and user-chosen names."""
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
    # Redact before cutting, since credentials in a cut URL are not recognized.
    text = json.dumps(value, ensure_ascii=False, default=str)[:MAX_SEARCHED_CHARS]
    return redact_urls(text)[:MAX_VALUE_CHARS]
