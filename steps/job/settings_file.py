"""Settings in a YAML file: the line of each, and a sentence for each mistake in them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from imagekiln.steps.errors import BadInput, first_line
from imagekiln.steps.job.fields import SettingMistake, Settings
from imagekiln.steps.runtime.sanitize import redact_urls
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import MAX_TEXT_BYTES, decode_text, resolve_path

S = TypeVar("S", bound=Settings)
SettingPath = tuple[str | int, ...]
Locations = Mapping[SettingPath, str]  # of each setting, such as job.yaml:12
Groups = list[tuple[SettingPath, type[BaseModel]]]
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
MIN_SIMILARITY_ELSEWHERE = 0.8  # of a misspelt setting that belongs to another group
# A value for all rows is meant more often than the name of a column, a sweep or a pass.
GROUPS_BESIDE = ("columns", "prompts", "passes")
MAX_SEARCHED_CHARS = 4000  # for URLs with credentials


def load_yaml(text: str) -> object:
    """The plain values in a YAML text. Raises YAML_ERRORS."""
    return yaml.safe_load(text)


def read_local_text(name: str, noun: str) -> str:
    """The text of a settings file on this machine; `noun` is what it should be, as "a job file".

    Raises Missing, BadInput if it is not text, TryAgain.
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
            if not isinstance(key, yaml.ScalarNode):  # of aliases, its text might have no end
                problem = "found unhashable key"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
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


@dataclass(frozen=True, slots=True)
class JobOrigin:
    """The folder of a job's file on this machine, if it has one, and the place of each setting.

    All origins are equal, so that equal jobs are.
    """

    folder: Path | None = field(default=None, compare=False)
    locations: Locations = field(default_factory=dict, compare=False)

    def locate(self, path: SettingPath) -> str | None:
        """The place of a setting."""
        return locate(path, self.locations)


def _describe_mistakes(
    root: type[BaseModel], error: ValidationError, values: object, name: str, locations: Locations
) -> list[str]:
    """Describe each wrong setting once: of a union, pydantic reports one mistake for each type."""
    groups = [*_iter_groups(root)]
    problems: dict[SettingPath, str] = {}
    for each in error.errors(include_url=False):
        path = _setting_path(each, values)
        problems.setdefault(path, _describe(groups, path, each))
    return [
        f"{locate(path, locations) or name}: {format_path(path) or 'the file'} {problem}."
        for path, problem in problems.items()
        if not any(other[: len(path)] == path for other in problems if other != path)
    ]


def _setting_path(error: ErrorDetails, values: object) -> SettingPath:
    """The path of the setting, without the names that pydantic adds for members of a union."""
    path: SettingPath = ()
    for name in error["loc"]:
        is_member = isinstance(values, dict) and name in values
        if isinstance(values, list | tuple) and isinstance(name, int):
            is_member = name < len(values)
        if is_member:
            values = values[name]  # type: ignore[index]
            path = (*path, name)
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, SettingMistake):
        return (*path, *cause.path)
    if error["type"] == "missing":
        return (*path, error["loc"][-1])
    return (*path, "kind") if error["type"].startswith("union_tag_") else path


def _describe(groups: Groups, path: SettingPath, error: ErrorDetails) -> str:
    problem = error["msg"].replace("Input should", "It should").replace("tuple", "list")
    problem = problem.replace("Tuple should", "It should")
    remedy = _describe_setting(groups, path)
    match error["type"]:
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case "extra_forbidden" | "invalid_key":
            return f"is not a setting; {_suggest_setting(groups, path)}"
        case "missing" | "union_tag_not_found":
            return f"is missing; {f'write {_lower(remedy)}' if remedy else 'add it'}"
        case "union_tag_invalid":
            context = error["ctx"]
            return f'is "{context["tag"]}"; it should be one of {context["expected_tags"]}'
        case "model_type":
            named = (kind for _, kind in groups if kind.__name__ == error["ctx"]["class_name"])
            names = ", ".join(next(named).model_fields)
            problem = f"it is a group with the settings {names}"
        case "string_pattern_mismatch" if remedy:
            problem = f"write {_lower(remedy)}"
    return f"is {_format_value(error['input'])}; {_lower(problem)}"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _suggest_setting(groups: Groups, path: SettingPath) -> str:
    """The setting that was probably meant: the nearest of the same group, or of any."""
    own = dict.fromkeys(
        name for place, kind in groups if _is_group(place, path) for name in kind.model_fields
    )
    if path[-1] in own:
        return "here, it is of another kind: remove it, or change the kind"
    last = str(path[-1]).lower().replace("-", "_")
    names = {name for _, kind in groups for name in kind.model_fields}
    near = get_close_matches(last, {*own, *names}, n=1, cutoff=MIN_SIMILARITY_ELSEWHERE)
    if near and near[0] not in own:
        paths = {(*place, near[0]): None for place, kind in groups if near[0] in kind.model_fields}
        likely = [each for each in paths if each[0] not in GROUPS_BESIDE] or paths
        return f"write {' or '.join(map(format_path, likely))}"
    if near := get_close_matches(last, own, n=1):
        return f"write {format_path((*path[:-1], near[0]))}"
    return f"the settings here are {', '.join(own)}" if own else "remove it"


def _describe_setting(groups: Groups, path: SettingPath) -> str:
    """The description of a setting; empty if it has none."""
    for place, kind in groups:
        if path and path[-1] in kind.model_fields and _is_group(place, path):
            return (kind.model_fields[str(path[-1])].description or "").rstrip(".")
    return ""


def _is_group(place: SettingPath, path: SettingPath) -> bool:
    """Return whether a setting is in the group at `place`, or in one that the user named there."""
    names = tuple(name for name in path[:-1] if isinstance(name, str))
    return names == place or (len(names) > 1 and names[:-1] == place)


def _iter_groups(
    kind: type[BaseModel], place: SettingPath = ()
) -> Iterator[tuple[SettingPath, type[BaseModel]]]:
    """Each group of settings with its path, leaving out indexes and names that the user chooses."""
    yield place, kind
    for name, info in kind.model_fields.items():
        for group in _groups_in(info.annotation):
            yield from _iter_groups(group, (*place, name))


def _groups_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for member in get_args(annotation):
        yield from _groups_in(member)


def _format_value(value: object) -> str:
    match value:
        case None:
            return "empty"
        case dict():
            return "a group of settings"
        case list() | tuple():
            return "a list"
        case bool():
            return str(value).lower()
    # Half of a URL is none whose credentials are known as such.
    text = redact_urls(str(value)[:MAX_SEARCHED_CHARS])[:MAX_VALUE_CHARS]
    return json.dumps(text, ensure_ascii=False) if isinstance(value, str) else text
