"""Reading a job: the YAML file, then environment variables, then `--set`.

Messages name where a wrong setting came from.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.introspection import SettingPath, accepts_type
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.origin import JobOrigin
from imagekiln.steps.job.settings_file import (
    YAML_ERRORS,
    load_yaml,
    parse_settings,
    read_local_text,
    validate_settings,
)
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.uri import is_remote_uri, read_text, resolve_path

TABLE_SUFFIXES = {".csv", ".tsv", ".txt", ".parquet", ".jsonl", ".ndjson", ".arrow", ".feather"}
ENVIRONMENT_PREFIX = "IMAGEKILN__"  # IMAGEKILN__MODEL__DTYPE=float32 sets model.dtype
REQUIRED_SETTINGS = "name, prompts, output and model, each as `key: value`"


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
    folder = None
    if text is None:
        _refuse_table(name)
        text = read_text(name) if is_remote_uri(name) else read_local_text(name, "a job file")
        folder = None if is_remote_uri(name) else Path(resolve_path(name)).absolute().parent
    values, locations = parse_settings(text, name, REQUIRED_SETTINGS)
    _apply_environment(values, os.environ if environment is None else environment, locations)
    for change in changes:
        _apply_option(values, change, locations)
    return validate_job(values, name, locations).with_origin(JobOrigin(folder, locations))


def _refuse_table(name: str) -> None:
    if PurePosixPath(name).suffix.lower() in TABLE_SUFFIXES:
        raise BadInput(
            f"{name}: is a table of prompts, not a job. `{format_command('init', name)}` writes a "
            "job for it."
        )


def validate_job(
    values: object, name: str = "job", locations: Mapping[SettingPath, str] | None = None
) -> Job:
    """The job of these plain values. Raises BadInput with a sentence for each mistake."""
    return validate_settings(Job, values, name, locations or {}, "the job")


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
        raise BadInput(f"{source}: names no setting. Choose one, such as defaults.steps.")
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
        value = load_yaml(text)
    except YAML_ERRORS:
        return text
    if not accepts_type(Job, path, str) or accepts_type(Job, path, type(value)):
        return value
    if isinstance(value, list) and accepts_type(Job, path, tuple):
        return value
    if value is None and text.strip():
        return None
    return text
