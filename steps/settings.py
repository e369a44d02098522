"""A job's settings by their path, read from its types: for messages, and for values that came as bare text."""

from collections.abc import Iterator
from typing import Annotated, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Place = tuple[str | int, ...]


def names(job: type[BaseModel], path: Place) -> list[str]:
    """The settings in the group at `path`, of every kind that it may be; none where that is no group."""
    return list(dict.fromkeys(name for group in _groups(job, path) for name in group.model_fields))


def has_kinds(job: type[BaseModel], path: Place) -> bool:
    """Whether the group at `path` has other settings for each `kind`."""
    return len(_groups(job, path)) > 1


def is_named_freely(job: type[BaseModel], path: Place) -> bool:
    """Whether the members of the group at `path` have names of the user's."""
    return any(get_origin(each) is dict for each in _annotations(job, path))


def description(job: type[BaseModel], path: Place) -> str | None:
    """What the setting at `path` says of itself; of a member that the user names, what names may be."""
    return next((field.description for field in _fields(job, path) or _free_names(job, path)), None)


def takes(job: type[BaseModel], path: Place, kind: type) -> bool:
    """Whether the setting at `path` may be a `kind`, such as str or list."""
    return any(kind in _kinds(field.annotation) for field in _fields(job, path))


def everywhere(job: type[BaseModel], above: Place = ()) -> Iterator[Place]:
    """The path of every setting that is no group."""
    for name in names(job, above):
        path = (*above, name)
        if names(job, path):
            yield from everywhere(job, path)
        else:
            yield path


def _fields(job: type[BaseModel], path: Place) -> list[FieldInfo]:
    """The setting at `path`, once for each kind of group that has it."""
    groups = _groups(job, path[:-1]) if path else []
    return [group.model_fields[str(path[-1])] for group in groups if path[-1] in group.model_fields]


def _free_names(job: type[BaseModel], path: Place) -> list[FieldInfo]:
    keys = [get_args(each)[0] for each in _annotations(job, path[:-1]) if get_origin(each) is dict]
    return [told for key in keys for told in get_args(key) if isinstance(told, FieldInfo)]


def _groups(job: type[BaseModel], path: Place) -> list[type[BaseModel]]:
    """The kinds of group that `path` may be; none where it is no group."""
    kinds = [kind for annotation in _annotations(job, path) for kind in _kinds(annotation)]
    return [kind for kind in kinds if issubclass(kind, BaseModel)]


def _annotations(job: type[BaseModel], path: Place) -> list[object]:
    """The types of the setting at `path`, or of the member of a list or of a freely named group that it names."""
    if not path:
        return [job]
    if isinstance(path[-1], int):  # of a list, every member has the same type
        lists = [each for each in _annotations(job, path[:-1]) if get_origin(each) is tuple]
        return [get_args(each)[0] for each in lists]
    if named := [get_args(each)[1] for each in _annotations(job, path[:-1]) if get_origin(each) is dict]:
        return named
    return [field.annotation for field in _fields(job, path)]


def _kinds(annotation: object) -> list[type]:
    """The plain types in an annotation: str for a literal's choices, tuple for tuple[str, ...]."""
    origin = get_origin(annotation)
    if origin is Literal:
        return [type(choice) for choice in get_args(annotation)]
    if isinstance(origin, type) and issubclass(origin, tuple):
        return [tuple]
    if origin is dict:
        return [dict]
    if isinstance(annotation, type):
        return [annotation]
    members = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
    return [kind for member in members for kind in _kinds(member)]
