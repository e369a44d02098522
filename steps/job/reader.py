"""Reading a job: the YAML file, then environment variables, then `--set`.

Messages name where a wrong setting came from.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError

from imagekiln.steps.errors import BadInput, first_line
from imagekiln.steps.job.introspection import SettingPath, accepts_type, format_path
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.validation_errors import describe_validation_errors
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import is_remote_uri, read_text, resolve_path

ENVIRONMENT_PREFIX = "IMAGEKILN__"  # IMAGEKILN__MODEL__DTYPE=float32 sets model.dtype
# PyYAML raises a ValueError for an impossible date, a RecursionError for endless brackets.
YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)


def read_job(
    name: str,
    changes: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
) -> Job:
    """The job in the file or at the URI `name`, with the `key=value` changes applied.

    With `text`, that is the job, and `name` is only for messages. Raises BadInput with a sentence
    for each mistake.
    """
    if text is None:
        text = read_text(name) if is_remote_uri(name) else _read_local_text(name)
    locations: dict[SettingPath, str] = {}
    values = _parse_yaml(text, name, locations)
    _apply_environment(values, os.environ if environment is None else environment, locations)
    for change in changes:
        _apply_option(values, change, locations)
    return validate_job(values, name, locations)


def validate_job(
    values: object, name: str = "job", locations: Mapping[SettingPath, str] | None = None
) -> Job:
    """The job of these plain values. Raises BadInput with a sentence for each mistake."""
    try:
        return Job.model_validate(values)
    except ValidationError as error:
        sentences = describe_validation_errors(Job, error.errors(), name, locations or {})
        raise BadInput(*sentences) from error


def _read_local_text(name: str) -> str:
    path = Path(resolve_path(name))
    with translate_errors(name):
        if path.is_dir():
            raise BadInput(f"{name or '.'}: is a folder. Name a job file.")
        content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: is not UTF-8 text. Name a job file.") from error


def _parse_yaml(text: str, name: str, locations: dict[SettingPath, str]) -> dict[str, object]:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise BadInput(
                f"{name}: contains no settings. "
                "Write name, prompts, output and model, each as `key: value`."
            )
        _record_locations(node, (), name, locations, set())
        return cast("dict[str, object]", yaml.safe_load(text))
    except YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(str(error))
        raise BadInput(
            f"{name}{line}: is not valid YAML ({problem.removeprefix('but ')}). Correct the syntax."
        ) from error


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
            inner = (*path, str(key.value))
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


def _apply_environment(
    values: dict[str, object], environment: Mapping[str, str], locations: dict[SettingPath, str]
) -> None:
    for variable, value in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT_PREFIX):
            key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            _apply_change(values, key.split("__"), value, variable, locations)


def _apply_option(
    values: dict[str, object], change: str, locations: dict[SettingPath, str]
) -> None:
    key, equals_sign, value = change.partition("=")
    if not equals_sign:
        raise BadInput(f"--set {change}: has no value. Write --set key=value.")
    path = key.strip().split(".")
    _apply_change(values, path, value, f"--set {key}", locations)


def _apply_change(
    values: dict[str, object],
    path: list[str],
    text: str,
    source: str,
    locations: dict[SettingPath, str],
) -> None:
    """Set the value at `path`, making groups on the way. Raises BadInput."""
    if not all(path):
        raise BadInput(f"{source}: names no setting. Name one, such as defaults.steps.")
    group = values
    for depth, name in enumerate(path[:-1], start=1):
        inner = group.setdefault(name, {})
        if not isinstance(inner, dict):
            setting = ".".join(path[:depth])
            raise BadInput(f"{source}: {setting} is not a group of settings. Set {setting} itself.")
        group = inner
    group[path[-1]] = _parse_value(tuple(path), text)

    changed: SettingPath = ()
    for name in path:
        changed = (*changed, name)
        locations[changed] = source


def _parse_value(path: SettingPath, text: str) -> object:
    """The text as YAML. A setting that takes text reads only quotes, lists and null as YAML."""
    try:
        value = yaml.safe_load(text)
    except YAML_ERRORS:
        return text
    if not accepts_type(Job, path, str) or isinstance(value, str):
        return value
    if isinstance(value, list) and accepts_type(Job, path, tuple):
        return value
    if value is None and text.strip():
        return None
    return text
