"""Fields of Kubernetes objects, any of which may be absent at any depth; quantities and amounts."""

from collections.abc import Mapping
from decimal import Decimal
from typing import cast

from imagekiln.workflows.objects import Json

BYTE_RESOURCES = ("memory", "storage")  # how their names end: limits.memory, ephemeral-storage


def get_mapping(value: object, *keys: str) -> Json:
    """The mapping at a path of keys; empty where there is none."""
    for key in keys:
        if not isinstance(value, dict):
            return {}
        value = value.get(key)
    if isinstance(value, dict):
        return cast("Json", value)
    return {}


def get_list(value: object, *keys: str) -> list[object]:
    """The list at a path of keys; empty where there is none."""
    *path, last = keys
    items = get_mapping(value, *path).get(last)
    if isinstance(items, list):
        return items
    return []


def get_mappings(value: object, *keys: str) -> list[Json]:
    """The mappings in the list at a path of keys."""
    items = get_list(value, *keys)
    mappings = [item for item in items if isinstance(item, dict)]
    return cast("list[Json]", mappings)


def get_texts(value: object, *keys: str) -> dict[str, str]:
    """The mapping of strings at a path of keys, such as labels."""
    mapping = get_mapping(value, *keys)
    return {key: str(item) for key, item in mapping.items()}


def get_quantities(value: object, *keys: str) -> dict[str, Decimal]:
    """The mapping of quantities at a path of keys, such as 250m or 4Gi, as numbers."""
    mapping = get_mapping(value, *keys)
    return {key: parse_amount(item) for key, item in mapping.items()}


def parse_amount(text: object) -> Decimal:
    """A Kubernetes quantity, such as 250m or 4Gi, as a number."""
    from kubernetes.utils.quantity import parse_quantity

    return cast("Decimal", parse_quantity(text))


def object_name(value: Mapping[str, object]) -> str:
    """An object's name."""
    metadata = get_mapping(value, "metadata")
    return str(metadata.get("name", ""))


def object_namespace(value: Mapping[str, object]) -> str:
    """An object's namespace."""
    metadata = get_mapping(value, "metadata")
    return str(metadata.get("namespace", ""))


def count_noun(number: int, noun: str) -> str:
    """A number with its noun, such as `2 nodes`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def format_amount(resource: str, value: Decimal) -> str:
    """An amount of a resource for people: bytes in GiB."""
    if resource.endswith(BYTE_RESOURCES):
        gib = float(value / 2**30)
        return f"{gib:g} GiB"
    return f"{float(value):g}"
