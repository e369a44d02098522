"""A sentence for each mistake in settings: pydantic's message, the line, and what was meant."""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from imagekiln.steps.job.fields import SettingMistake
from imagekiln.steps.job.origin import JobOrigin, SettingPath, format_path
from imagekiln.steps.runtime.sanitize import redact_urls

MAX_VALUE_CHARS = 60
MIN_SIMILARITY_ELSEWHERE = 0.8  # of a misspelt setting that belongs to another group
# A value for all rows is meant more often than the name of a column, a sweep or a pass.
GROUPS_BESIDE = ("columns", "prompts", "passes")
MAX_SEARCHED_CHARS = 4000  # for URLs with credentials


def describe_mistakes(
    root: type[BaseModel],
    error: ValidationError,
    values: object,
    name: str,
    locations: Mapping[SettingPath, str],
) -> list[str]:
    """Describe each wrong setting of `values`; `name` is the file.

    Pydantic reports each type that a setting may have: the first, or the innermost, is enough.
    """
    problems: dict[SettingPath, str] = {}
    for each in error.errors(include_url=False):
        path = _setting_path(each, values)
        problems.setdefault(path, _describe(root, path, each))

    origin = JobOrigin(locations=locations)
    sentences = []
    for path, problem in problems.items():
        if not any(other[: len(path)] == path for other in problems if other != path):
            subject = format_path(path) or "the file"
            sentences.append(f"{origin.locate(path) or name}: {subject} {problem}.")
    return sentences


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
    match error["type"]:
        case "missing":
            return (*path, error["loc"][-1])
        case "union_tag_invalid" | "union_tag_not_found":
            return (*path, "kind")
        case _:
            return path


def _describe(root: type[BaseModel], path: SettingPath, error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    problem = error["msg"]
    field = _find_field(root, path)
    remedy = "" if field is None or field.description is None else field.description.rstrip(".")
    match error["type"]:
        case "value_error":
            return problem.removeprefix("Value error, ")
        case "extra_forbidden" | "invalid_key":
            return f"is not a setting; {_suggest_setting(root, path)}"
        case "missing" | "union_tag_not_found":
            return f"is missing; {f'write {_lower(remedy)}' if remedy else 'add it'}"
        case "union_tag_invalid":
            return f'is "{context["tag"]}"; it should be one of {context["expected_tags"]}'
        case "model_type":
            names = [
                name
                for _, kind in _iter_groups(root)
                for name in kind.model_fields
                if kind.__name__ == context["class_name"]
            ]
            problem = f"it is a group with the settings {', '.join(dict.fromkeys(names))}"
        case "string_pattern_mismatch" if remedy:
            problem = f"write {_lower(remedy)}"
        case _:
            problem = problem.replace("Input should", "It should").replace("tuple", "list")
            problem = problem.replace("Tuple should", "It should")
    return f"is {_format_value(error['input'])}; {_lower(problem)}"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _suggest_setting(root: type[BaseModel], path: SettingPath) -> str:
    """The setting that was probably meant: the nearest of the same group, or of any."""
    groups = [*_iter_groups(root)]
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


def _find_field(root: type[BaseModel], path: SettingPath) -> FieldInfo | None:
    for place, kind in _iter_groups(root):
        if path and path[-1] in kind.model_fields and _is_group(place, path):
            return kind.model_fields[str(path[-1])]
    return None


def _is_group(place: SettingPath, path: SettingPath) -> bool:
    """Whether a setting is in the group at `place`, or in one that the user has named there."""
    names = tuple(name for name in path[:-1] if isinstance(name, str))
    return names == place or (len(names) > 1 and names[:-1] == place)


def _iter_groups(
    kind: type[BaseModel], place: SettingPath = ()
) -> Iterator[tuple[SettingPath, type[BaseModel]]]:
    """Each group of settings with its path, leaving out indexes and names that the user chooses."""
    yield place, kind
    for name, field in kind.model_fields.items():
        for group in _groups_in(field.annotation):
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
