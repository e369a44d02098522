"""Fields of Kubernetes objects, any of which may be absent at any depth; quantities and amounts."""

from collections.abc import Mapping
from decimal import Decimal
from typing import cast

from imagekiln.workflows.objects import Json


def get_mapping(value: object, *keys: str) -> Json:
    """The mapping at a path of keys; empty where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return cast("Json", value) if isinstance(value, dict) else {}


def get_list(value: object, *keys: str) -> list[object]:
    """The list at a path of keys; empty where there is none."""
    items = get_mapping(value, *keys[:-1]).get(keys[-1])
    return items if isinstance(items, list) else []


def get_mappings(value: object, *keys: str) -> list[Json]:
    """The mappings in the list at a path of keys."""
    return [cast("Json", item) for item in get_list(value, *keys) if isinstance(item, dict)]


def get_texts(value: object, *keys: str) -> dict[str, str]:
    """The mapping of strings at a path of keys, such as labels."""
    return {key: str(item) for key, item in get_mapping(value, *keys).items()}


def get_quantities(value: object, *keys: str) -> dict[str, Decimal]:
    """The mapping of quantities at a path of keys, such as 250m or 4Gi, as numbers."""
    return {key: parse_amount(item) for key, item in get_mapping(value, *keys).items()}


def parse_amount(text: object) -> Decimal:
    """A Kubernetes quantity, such as 250m or 4Gi, as a number."""
    from kubernetes.utils.quantity import parse_quantity

    return cast("Decimal", parse_quantity(text))


def object_name(value: Mapping[str, object]) -> str:
    """An object's name."""
    return str(get_mapping(value, "metadata").get("name", ""))


def object_namespace(value: Mapping[str, object]) -> str:
    """An object's namespace."""
    return str(get_mapping(value, "metadata").get("namespace", ""))


def count_noun(number: int, noun: str) -> str:
    """A number with its noun, such as `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_amount(resource: str, value: Decimal) -> str:
    """An amount of a resource for people: memory in GiB."""
    if resource.endswith("memory"):
        return f"{float(value / 2**30):g} GiB"
    return f"{float(value):g}"
