"""Reading a job: YAML, then environment variables, then `--set`. Every mistake is named with its place."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError

from imagekiln.steps import bundled, remote
from imagekiln.steps.errors import BadInput
from imagekiln.steps.job import Job
from imagekiln.steps.mistakes import sentence
from imagekiln.steps.store_errors import told

ENVIRONMENT = "IMAGEKILN__"  # IMAGEKILN__MODEL__DTYPE=float32 sets model.dtype
Path_ = tuple[str | int, ...]
YAML_11_FLOAT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")


def read_job(
    name: str,
    settings: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
) -> Job:
    """The job in the file or at the URI `name`, with `key=value` settings on top.

    Where `text` is given, it is the job, and `name` only names it. Raises BadInput with every mistake's place.
    """
    if text is None:
        text = remote.text(name) if remote.is_remote(name) else _text(name)
    places: dict[Path_, str] = {}
    values = _parsed(text, name, places)
    for variable, value in sorted((os.environ if environment is None else environment).items()):
        if variable.startswith(ENVIRONMENT):
            path = variable.removeprefix(ENVIRONMENT).lower().split("__")
            _override(values, path, value, variable, places)
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign:
            raise BadInput(f"--set {setting}: has no value. Write --set key=value.")
        _override(values, key.strip().split("."), value, f"--set {key}", places)
    return check_job(values, name, places)


def check_job(values: object, name: str = "job", places: Mapping[Path_, str] | None = None) -> Job:
    """The job of these plain values. Raises BadInput, a sentence for each mistake."""
    try:
        return Job.model_validate(values)
    except ValidationError as error:
        found = [sentence(Job, each, name, places or {}) for each in error.errors()]
        raise BadInput("\n".join(dict.fromkeys(found))) from error


def _text(name: str) -> str:
    with told(name):
        return Path(bundled.local(name)).read_text(encoding="utf-8")


def _parsed(text: str, name: str, places: dict[Path_, str]) -> dict[str, object]:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise BadInput(f"{name}: is no mapping of settings. Begin with `name:`, `prompts:`, `output:`, `model:`.")
        _note_places(node, (), name, places)
        return cast("dict[str, object]", yaml.safe_load(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadInput(f"{name}{line}: is not YAML ({problem}).") from error


def _note_places(node: yaml.Node, path: Path_, name: str, places: dict[Path_, str]) -> None:
    places[path] = f"{name}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            if inner in places:
                raise BadInput(f"{name}:{key.start_mark.line + 1}: {'.'.join(map(str, inner))} is there twice.")
            _note_places(value, inner, name, places)
            places[inner] = f"{name}:{key.start_mark.line + 1}"
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            _note_places(value, (*path, place), name, places)


def _override(values: dict[str, object], path: list[str], text: str, source: str, places: dict[Path_, str]) -> None:
    level = values
    for name in path[:-1]:
        inner = level.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadInput(f"{source}: {name} is no group of settings.")
        level = inner
    try:
        level[path[-1]] = yaml.safe_load(text)
    except yaml.YAMLError:
        level[path[-1]] = text
    for depth in range(1, len(path) + 1):
        places[tuple(path[:depth])] = source
