"""A job's settings by their path, read from its types: for messages, and for values that came as bare text."""

from collections.abc import Iterator
from typing import Annotated, Literal, get_args, get_origin

from pydantic import BaseModel

Place = tuple[str | int, ...]


def names(job: type[BaseModel], path: Place) -> list[str]:
    """The settings in the group at `path`; none where that is no group."""
    group = _group(job, path)
    return [] if group is None else list(group.model_fields)


def description(job: type[BaseModel], path: Place) -> str | None:
    """What the setting at `path` says of itself."""
    group = _group(job, path[:-1])
    field = group.model_fields.get(str(path[-1])) if group and path else None
    return field.description if field else None


def takes(job: type[BaseModel], path: Place, kind: type) -> bool:
    """Whether the setting at `path` may be a `kind`, such as str or list."""
    group = _group(job, path[:-1])
    field = group.model_fields.get(str(path[-1])) if group else None
    return field is not None and kind in _kinds(field.annotation)


def everywhere(job: type[BaseModel], above: Place = ()) -> Iterator[Place]:
    """The path of every setting that is no group."""
    for name in names(job, above):
        path = (*above, name)
        if names(job, path):
            yield from everywhere(job, path)
        else:
            yield path


def _group(job: type[BaseModel], path: Place) -> type[BaseModel] | None:
    annotation: object = job
    for name in path:
        if isinstance(name, int):
            annotation = _member(annotation)
        else:
            group = _model(annotation)
            field = group.model_fields.get(name) if group else None
            annotation = field.annotation if field else None
    return _model(annotation)


def _model(annotation: object) -> type[BaseModel] | None:
    return next((kind for kind in _kinds(annotation) if issubclass(kind, BaseModel)), None)


def _member(annotation: object) -> object:
    """What a list holds, of which every member has the same type."""
    return get_args(annotation)[0] if get_origin(annotation) is tuple else None


def _kinds(annotation: object) -> list[type]:
    """The plain types in an annotation: str for a literal's choices, tuple for tuple[str, ...]."""
    origin = get_origin(annotation)
    if origin is Literal:
        return [type(choice) for choice in get_args(annotation)]
    if isinstance(origin, type) and issubclass(origin, tuple):
        return [tuple]
    if isinstance(annotation, type):
        return [annotation]
    members = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
    return [kind for member in members for kind in _kinds(member)]
