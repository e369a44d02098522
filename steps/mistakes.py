"""What is wrong in a job, said so that it can be mended: place, setting, and the nearest right one."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

Place = tuple[str | int, ...]


def sentence(job: type[BaseModel], error: ErrorDetails, name: str, places: Mapping[Place, str]) -> str:
    """One mistake as one sentence. `places` says where each setting stands in the file."""
    path = _settings_path(job, error["loc"])
    where = next((places[path[:depth]] for depth in range(len(path), -1, -1) if path[:depth] in places), name)
    setting = ".".join(map(str, path)) or "the job"
    return f"{where}: {setting} {_problem(job, path, error)}"


def _problem(job: type[BaseModel], path: Place, error: ErrorDetails) -> str:
    given = error["input"]
    match error["type"]:
        case "extra_forbidden":
            return f"is no setting; {_nearest(str(path[-1]), _fields(job, path[:-1]))}."
        case "missing":
            return "is missing; write it."
        case "literal_error":
            wanted = str(error.get("ctx", {}).get("expected", ""))
            choices = [choice.strip("'") for choice in wanted.replace(" or ", ", ").split(", ")]
            return f'is "{given}"; {_nearest(str(given), choices)}.'
        case "value_error":
            return f"{error['msg'].removeprefix('Value error, ')}."
        case "string_pattern_mismatch":
            return f'is "{given}"; write what matches {error.get("ctx", {}).get("pattern")}.'
        case _:
            message = error["msg"][:1].lower() + error["msg"][1:]
            return f"is {_shown(given)}; {message.replace('input should', 'it should')}."


def _nearest(given: str, choices: list[str]) -> str:
    close = get_close_matches(given.lower(), choices, n=1, cutoff=0.45)
    if not close:
        containing = [choice for choice in choices if given.lower().strip("s") in choice]
        close = containing[:1]
    return f'write "{close[0]}"' if close else f"write one of {', '.join(choices)}"


def _fields(job: type[BaseModel], path: Place) -> list[str]:
    """The names of the settings at `path`."""
    model = job
    for name in path:
        field = model.model_fields.get(str(name))
        inner = _model_in(field.annotation) if field else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    kinds = (annotation, *get_args(annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _settings_path(job: type[BaseModel], loc: Place) -> Place:
    """The path of a setting, without the words that pydantic adds for the members of a union."""
    path: Place = ()
    for name in loc:
        if isinstance(name, int) or _fields(job, path):
            path = (*path, name)
    return path


def _shown(given: object) -> str:
    return f'"{given}"' if isinstance(given, str) else str(given)[:60]
