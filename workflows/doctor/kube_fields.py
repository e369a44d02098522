"""Quantities and amounts in the fields of Kubernetes objects."""

from decimal import Decimal
from typing import cast

from imagekiln.workflows.objects import get_mapping

BYTE_RESOURCES = ("memory", "storage")  # how their names end: limits.memory, ephemeral-storage


def get_quantities(value: object, *keys: str) -> dict[str, Decimal]:
    """The mapping of quantities at a path of keys, such as 250m or 4Gi, as numbers."""
    mapping = get_mapping(value, *keys)
    return {key: parse_amount(item) for key, item in mapping.items()}


def parse_amount(text: object) -> Decimal:
    """A Kubernetes quantity, such as 250m or 4Gi, as a number."""
    from kubernetes.utils.quantity import parse_quantity

    return cast("Decimal", parse_quantity(text))


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
