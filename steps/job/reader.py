"""Reading of jobs from YAML files and `--set`. Messages name the source of a wrong setting."""

from collections.abc import Sequence
from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.settings_file import (
    YAML_ERRORS,
    Locations,
    SettingPath,
    load_yaml,
    parse_settings,
    read_local_text,
    validate_settings,
)
from imagekiln.steps.job.user_checks import search_modules_in
from imagekiln.steps.storage.uri import is_remote_uri, read_text, resolve_path

REQUIRED_SETTINGS = "name, prompts, output and model, each as `key: value`"
YAML_STARTS = ("[", "{", "'", '"')  # of a list, a group and quotes


def read_job(
    name: str,
    changes: Sequence[str] = (),
    text: str | None = None,
) -> Job:
    """Read the job at the path or URI `name`, and apply `changes` of the form `key=value`.

    With `text`, parse this YAML document instead, and use `name` only in messages. Raises BadInput
    with a sentence for each mistake.
    """
    if text is None and is_remote_uri(name):
        text = read_text(name)
    elif text is None:
        text = read_local_text(name, "a job file")
        search_modules_in(str(Path(resolve_path(name)).absolute().parent))
    values, locations = parse_settings(text, name, REQUIRED_SETTINGS)
    for change in changes:
        key, equals_sign, value = change.partition("=")
        if not equals_sign:
            raise BadInput(f"--set {change}: has no value. Write --set key=value.")
        _set_value(values, key.strip().split("."), value, locations)
    return validate_job(values, name, locations)


def validate_job(values: object, name: str = "job", locations: Locations | None = None) -> Job:
    """Validate plain values as a job. Raises BadInput with a sentence for each mistake."""
    return validate_settings(Job, values, name, locations or {})


def _set_value(
    values: dict[str, object],
    path: Sequence[str],
    text: str,
    locations: dict[SettingPath, str],
) -> None:
    """Set a value from the command line, and create missing groups. Raises BadInput."""
    source = f"--set {'.'.join(path)}"
    if not all(path):
        raise BadInput(f"{source}: names no setting. Choose one, such as defaults.steps.")
    group = values
    for depth, name in enumerate(path[:-1], start=1):
        inner = group.setdefault(name, {})
        if not isinstance(inner, dict):
            setting = ".".join(path[:depth])
            raise BadInput(f"{source}: {setting} is not a group of settings. Set {setting} itself.")
        group = inner
    group[path[-1]] = _parse_value(text)
    for depth in range(1, len(path) + 1):
        locations[tuple(path[:depth])] = source


def _parse_value(text: str) -> object:
    """Parse a value as YAML if it is a list, a group, quoted or null; otherwise keep the string."""
    if text != "null" and not text.startswith(YAML_STARTS):
        return text
    try:
        return load_yaml(text)
    except YAML_ERRORS:
        return text
