"""A job's settings by their path, read from its types: for messages, and for values that came as bare text."""

from collections.abc import Iterator
from typing import Annotated, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

SettingPath = tuple[str | int, ...]


def setting_names(job: type[BaseModel], path: SettingPath) -> list[str]:
    """The settings in the group at `path`, of every kind that it may be; none where that is no group."""
    return list(
        dict.fromkeys(name for group in _group_types(job, path) for name in group.model_fields)
    )


def has_group_kinds(job: type[BaseModel], path: SettingPath) -> bool:
    """Whether the group at `path` has other settings for each `kind`."""
    return len(_group_types(job, path)) > 1


def has_user_defined_keys(job: type[BaseModel], path: SettingPath) -> bool:
    """Whether the members of the group at `path` have names of the user's."""
    return any(get_origin(each) is dict for each in _annotations(job, path))


def setting_description(job: type[BaseModel], path: SettingPath) -> str | None:
    """What the setting at `path` says of itself; of a member that the user names, what names may be."""
    return next(
        (field.description for field in _field_infos(job, path) or _key_field_infos(job, path)),
        None,
    )


def accepts_type(job: type[BaseModel], path: SettingPath, kind: type) -> bool:
    """Whether the setting at `path` may be a `kind`, such as str or list."""
    return any(kind in _plain_types(field.annotation) for field in _field_infos(job, path))


def iter_setting_paths(job: type[BaseModel], above: SettingPath = ()) -> Iterator[SettingPath]:
    """The path of every setting that is no group."""
    for name in setting_names(job, above):
        path = (*above, name)
        if setting_names(job, path):
            yield from iter_setting_paths(job, path)
        else:
            yield path


def _field_infos(job: type[BaseModel], path: SettingPath) -> list[FieldInfo]:
    """The setting at `path`, once for each kind of group that has it."""
    groups = _group_types(job, path[:-1]) if path else []
    return [group.model_fields[str(path[-1])] for group in groups if path[-1] in group.model_fields]


def _key_field_infos(job: type[BaseModel], path: SettingPath) -> list[FieldInfo]:
    keys = [get_args(each)[0] for each in _annotations(job, path[:-1]) if get_origin(each) is dict]
    return [told for key in keys for told in get_args(key) if isinstance(told, FieldInfo)]


def _group_types(job: type[BaseModel], path: SettingPath) -> list[type[BaseModel]]:
    """The kinds of group that `path` may be; none where it is no group."""
    kinds = [kind for annotation in _annotations(job, path) for kind in _plain_types(annotation)]
    return [kind for kind in kinds if issubclass(kind, BaseModel)]


def _annotations(job: type[BaseModel], path: SettingPath) -> list[object]:
    """The types of the setting at `path`, or of the member of a list or of a freely named group that it names."""
    if not path:
        return [job]
    if isinstance(path[-1], int):  # of a list, every member has the same type
        lists = [each for each in _annotations(job, path[:-1]) if get_origin(each) is tuple]
        return [get_args(each)[0] for each in lists]
    if named := [
        get_args(each)[1] for each in _annotations(job, path[:-1]) if get_origin(each) is dict
    ]:
        return named
    return [field.annotation for field in _field_infos(job, path)]


def _plain_types(annotation: object) -> list[type]:
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
    return [kind for member in members for kind in _plain_types(member)]
