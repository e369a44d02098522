"""Access to Kubernetes objects as plain values, in which any field may be absent."""

from collections.abc import Mapping
from typing import cast

Json = dict[str, object]


def object_metadata(manifest: Json) -> Json:
    """Return an object's metadata."""
    return cast("Json", manifest["metadata"])


def object_identity(manifest: Json) -> tuple[str, str, str]:
    """Return an object's kind, namespace and name."""
    metadata = cast("Mapping[str, str]", manifest["metadata"])
    return str(manifest["kind"]), metadata["namespace"], metadata["name"]


def get_mapping(value: object, *keys: str) -> Json:
    """Return the mapping at a path of keys; empty if there is none."""
    for key in keys:
        if not isinstance(value, dict):
            return {}
        value = value.get(key)
    if isinstance(value, dict):
        return cast("Json", value)
    return {}


def get_list(value: object, *keys: str) -> list[object]:
    """Return the list at a path of keys; empty if there is none."""
    *path, last = keys
    items = get_mapping(value, *path).get(last)
    if isinstance(items, list):
        return items
    return []


def get_mappings(value: object, *keys: str) -> list[Json]:
    """Return the mappings in the list at a path of keys."""
    items = get_list(value, *keys)
    mappings = [item for item in items if isinstance(item, dict)]
    return cast("list[Json]", mappings)


def get_texts(value: object, *keys: str) -> dict[str, str]:
    """Return the mapping of strings at a path of keys, such as labels."""
    mapping = get_mapping(value, *keys)
    return {key: str(item) for key, item in mapping.items()}


def object_name(value: Mapping[str, object]) -> str:
    """Return an object's name."""
    metadata = get_mapping(value, "metadata")
    return str(metadata.get("name", ""))


def object_namespace(value: Mapping[str, object]) -> str:
    """Return an object's namespace."""
    metadata = get_mapping(value, "metadata")
    return str(metadata.get("namespace", ""))
