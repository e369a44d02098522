"""The settings of a job, or of another `root`, by their paths, as the types declare them."""

from collections.abc import Iterator
from typing import Annotated, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

SettingPath = tuple[str | int, ...]


def format_path(path: SettingPath) -> str:
    """The path as people write it, such as gates.checks[0].name."""
    text = ""
    for name in path:
        if isinstance(name, int):
            text += f"[{name}]"
        else:
            text += f".{name}" if text else name
    return text


def setting_names(root: type[BaseModel], path: SettingPath) -> list[str]:
    """The settings in the group at `path`, of all its kinds; empty where it is not a group."""
    names: dict[str, None] = {}
    for group in _group_types(root, path):
        names |= dict.fromkeys(group.model_fields)
    return list(names)


def required_setting_names(root: type[BaseModel], path: SettingPath) -> list[str]:
    """The settings in the group at `path` that have no default."""
    names = []
    for group in _group_types(root, path):
        names += [name for name, field in group.model_fields.items() if field.is_required()]
    return names


def has_group_kinds(root: type[BaseModel], path: SettingPath) -> bool:
    """Whether the settings in the group at `path` depend on its `kind`."""
    return len(_group_types(root, path)) > 1


def kinds_with_setting(root: type[BaseModel], path: SettingPath) -> list[str]:
    """The kinds of the group around the setting at `path` that have it."""
    kinds = []
    for group in _group_types(root, path[:-1]):
        fields = group.model_fields
        if path[-1] in fields:
            kinds.append(str(fields["kind"].default))
    return kinds


def has_user_defined_keys(root: type[BaseModel], path: SettingPath) -> bool:
    """Whether the user names the members of the group at `path`, as in model.loras."""
    return bool(_types_of_origin(root, path, dict))


def setting_description(root: type[BaseModel], path: SettingPath) -> str | None:
    """The description of the setting at `path`; of a name that the user chose, which are valid."""
    fields = _field_infos(root, path) or _key_field_infos(root, path)
    return fields[0].description if fields else None


def accepts_type(root: type[BaseModel], path: SettingPath, kind: type) -> bool:
    """Whether the setting at `path` may be a `kind`, such as str or tuple."""
    return any(kind in _plain_types(annotation) for annotation in _annotations(root, path))


def iter_setting_paths(root: type[BaseModel], above: SettingPath = ()) -> Iterator[SettingPath]:
    """The path of every setting that is not itself a group."""
    for name in setting_names(root, above):
        path = (*above, name)
        if setting_names(root, path):
            yield from iter_setting_paths(root, path)
        else:
            yield path


def _field_infos(root: type[BaseModel], path: SettingPath) -> list[FieldInfo]:
    """The setting at `path`, once for each kind of group that has it."""
    if not path:
        return []
    name = str(path[-1])
    groups = _group_types(root, path[:-1])
    return [group.model_fields[name] for group in groups if name in group.model_fields]


def _key_field_infos(root: type[BaseModel], path: SettingPath) -> list[FieldInfo]:
    """The declaration of the key at `path`, where the user chose that key."""
    fields = []
    for group in _types_of_origin(root, path[:-1], dict):
        key_type, _ = get_args(group)
        fields += [extra for extra in get_args(key_type) if isinstance(extra, FieldInfo)]
    return fields


def _group_types(root: type[BaseModel], path: SettingPath) -> list[type[BaseModel]]:
    """The kinds of group that `path` may be; empty where it is not a group."""
    groups = []
    for annotation in _annotations(root, path):
        kinds = _plain_types(annotation)
        groups += [kind for kind in kinds if issubclass(kind, BaseModel)]
    return groups


def _types_of_origin(root: type[BaseModel], path: SettingPath, origin: type) -> list[object]:
    """The generic types of the setting at `path`, such as its dict[...]."""
    return [kind for kind in _annotations(root, path) if get_origin(kind) is origin]


def _annotations(root: type[BaseModel], path: SettingPath) -> list[object]:
    """The types of the setting at `path`, also in a list or in a group with keys of the user's."""
    if not path:
        return [root]
    above = path[:-1]
    if isinstance(path[-1], int):  # all members of a list have the same type
        return [get_args(kind)[0] for kind in _types_of_origin(root, above, tuple)]
    if groups := _types_of_origin(root, above, dict):
        return [get_args(group)[1] for group in groups]
    return [field.annotation for field in _field_infos(root, path)]


def _plain_types(annotation: object) -> list[type]:
    """The plain types in an annotation: str for a literal's choices, tuple for tuple[str, ...]."""
    origin = get_origin(annotation)
    if origin is Literal:
        return [type(choice) for choice in get_args(annotation)]
    if origin is tuple or origin is dict:
        return [origin]
    if isinstance(annotation, type):
        return [annotation]
    members = get_args(annotation)
    if origin is Annotated:
        members = members[:1]
    return [kind for member in members for kind in _plain_types(member)]
