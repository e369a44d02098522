"""Reading a job: the YAML file, then environment variables, then `--set`.

Messages name where a wrong setting came from.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.settings_file import (
    YAML_ERRORS,
    JobOrigin,
    Locations,
    SettingPath,
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
        if is_remote_uri(name):
            text = read_text(name)
        else:
            text = read_local_text(name, "a job file")
            folder = Path(resolve_path(name)).absolute().parent
    values, locations = parse_settings(text, name, REQUIRED_SETTINGS)
    texts = _read_environment(os.environ if environment is None else environment)
    texts += map(_parse_option, changes)
    for change in texts:
        _apply_change(values, change, locations)
    _keep_texts(values, texts)
    return validate_job(values, name, locations).with_origin(JobOrigin(folder, locations))


def _refuse_table(name: str) -> None:
    if PurePosixPath(name).suffix.lower() in TABLE_SUFFIXES:
        raise BadInput(
            f"{name}: is a table of prompts, not a job. `{format_command('init', name)}` writes a "
            "job for it."
        )


def validate_job(values: object, name: str = "job", locations: Locations | None = None) -> Job:
    """The job of these plain values. Raises BadInput with a sentence for each mistake."""
    return validate_settings(Job, values, name, locations or {})


@dataclass(frozen=True, slots=True)
class _Change:
    """A setting of the environment or the command line; `source` is its name there."""

    path: tuple[str, ...]
    text: str
    source: str


def _read_environment(environment: Mapping[str, str]) -> list[_Change]:
    return [
        _Change(
            tuple(variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")), text, variable
        )
        for variable, text in sorted(environment.items())
        if variable.startswith(ENVIRONMENT_PREFIX)
    ]


def _parse_option(change: str) -> _Change:
    key, equals_sign, text = change.partition("=")
    if not equals_sign:
        raise BadInput(f"--set {change}: has no value. Write --set key=value.")
    return _Change(tuple(key.strip().split(".")), text, f"--set {key}")


def _apply_change(
    values: dict[str, object], change: _Change, locations: dict[SettingPath, str]
) -> None:
    """Set the value, making groups on the way. Raises BadInput."""
    source, path = change.source, change.path
    if not all(path):
        raise BadInput(f"{source}: names no setting. Choose one, such as defaults.steps.")
    group = values
    for depth, name in enumerate(path[:-1], start=1):
        inner = group.setdefault(name, {})
        if not isinstance(inner, dict):
            setting = ".".join(path[:depth])
            raise BadInput(f"{source}: {setting} is not a group of settings. Set {setting} itself.")
        group = inner
    try:
        group[path[-1]] = load_yaml(change.text)
    except YAML_ERRORS:
        group[path[-1]] = change.text
    for depth in range(1, len(path) + 1):
        locations[path[:depth]] = source


def _keep_texts(values: dict[str, object], changes: Sequence[_Change]) -> None:
    """Put back texts that YAML reads as numbers, dates or groups, if their settings take text."""
    try:
        Job.model_validate(values)
    except ValidationError as error:
        refused = [each["input"] for each in error.errors() if each["type"] == "string_type"]
        for change in changes:
            group: Any = reduce(getitem, change.path[:-1], values)  # type: ignore[arg-type]
            if any(group[change.path[-1]] is value for value in refused):
                group[change.path[-1]] = change.text
