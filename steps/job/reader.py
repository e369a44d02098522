"""Reading a job: YAML, then environment variables, then `--set`. Every mistake is named with its place."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError

from imagekiln.steps.errors import BadInput, first_line
from imagekiln.steps.job.introspection import SettingPath, accepts_type
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.validation_errors import describe_validation_errors
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import is_remote_uri, read_text, resolve_path

ENVIRONMENT_PREFIX = "IMAGEKILN__"  # IMAGEKILN__MODEL__DTYPE=float32 sets model.dtype


def read_job(
    name: str,
    changes: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
) -> Job:
    """The job in the file or at the URI `name`, with `key=value` changes on top.

    Where `text` is given, it is the job, and `name` only names it. Raises BadInput with every mistake's place.
    """
    if text is None:
        text = read_text(name) if is_remote_uri(name) else _read_job_text(name)
    places: dict[SettingPath, str] = {}
    values = _parse_yaml(text, name, places)
    for variable, value in sorted((os.environ if environment is None else environment).items()):
        if variable.startswith(ENVIRONMENT_PREFIX):
            _apply_change(
                values,
                variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"),
                value,
                variable,
                places,
            )
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign:
            raise BadInput(f"--set {change}: has no value. Write --set key=value.")
        _apply_change(values, key.strip().split("."), value, f"--set {key}", places)
    return validate_job(values, name, places)


def validate_job(
    values: object, name: str = "job", places: Mapping[SettingPath, str] | None = None
) -> Job:
    """The job of these plain values. Raises BadInput, a sentence for each mistake."""
    try:
        return Job.model_validate(values)
    except ValidationError as error:
        raise BadInput(
            *describe_validation_errors(Job, error.errors(), name, places or {})
        ) from error


def _read_job_text(name: str) -> str:
    path = Path(resolve_path(name))
    with translate_errors(name):
        if path.is_dir():
            raise BadInput(f"{name or '.'}: is a folder. Name a job file.")
        content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{name}: is no job file: it is not UTF-8 text. Name another file."
        ) from error


def _parse_yaml(text: str, name: str, places: dict[SettingPath, str]) -> dict[str, object]:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise BadInput(
                f"{name}: holds no settings. Write name, prompts, output and model, each as `key: value`."
            )
        _record_locations(node, (), name, places, set())
        return cast("dict[str, object]", yaml.safe_load(text))
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # a date that is none, brackets without end
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(str(error))
        raise BadInput(
            f"{name}{line}: is not YAML ({problem.removeprefix('but ')}). Correct it."
        ) from error


def _record_locations(
    node: yaml.Node, path: SettingPath, name: str, places: dict[SettingPath, str], seen: set[int]
) -> None:
    """Remember the line of every setting below `node`; refuse what is there twice. Aliases are followed once."""
    places.setdefault(path, f"{name}:{node.start_mark.line + 1}")
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner, line = (*path, str(key.value)), key.start_mark.line + 1
            if inner in places:
                raise BadInput(
                    f"{name}:{line}: {'.'.join(map(str, inner))} is there twice. Remove one of them."
                )
            places[inner] = f"{name}:{line}"
            _record_locations(value, inner, name, places, seen)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            _record_locations(value, (*path, place), name, places, seen)


def _apply_change(
    values: dict[str, object],
    path: list[str],
    text: str,
    source: str,
    places: dict[SettingPath, str],
) -> None:
    if not all(path):
        raise BadInput(f"{source}: names no setting. Name one, such as defaults.steps.")
    level = values
    for name in path[:-1]:
        inner = level.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadInput(f"{source}: {name} is no group of settings. Set {name} itself.")
        level = inner
    level[path[-1]] = _parse_value(tuple(path), text)
    for depth in range(1, len(path) + 1):
        places[tuple(path[:depth])] = source


def _parse_value(path: SettingPath, text: str) -> object:
    """What the text means as YAML; where the setting is text, only what is quoted, a list or null means more."""
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if not accepts_type(Job, path, str) or isinstance(value, str):
        return value
    if (isinstance(value, list) and accepts_type(Job, path, tuple)) or (
        value is None and text.strip()
    ):
        return value
    return text
