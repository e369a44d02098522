"""Reading Kubernetes' objects, whose parts may be absent at any depth."""

from collections.abc import Mapping
from decimal import Decimal
from typing import cast

from imagekiln.workflows.objects import Json


def get_mapping(made: object, *keys: str) -> Json:
    """The mapping at the end of the keys; empty where there is none."""
    for key in keys:
        made = made.get(key) if isinstance(made, dict) else None
    return cast("Json", made) if isinstance(made, dict) else {}


def get_mappings(made: object, *keys: str) -> list[Json]:
    """The list of mappings at the end of the keys; empty where there is none."""
    found = get_mapping(made, *keys[:-1]).get(keys[-1])
    return (
        [cast("Json", each) for each in found if isinstance(each, dict)]
        if isinstance(found, list)
        else []
    )


def get_texts(made: object, *keys: str) -> dict[str, str]:
    """The mapping of texts at the end of the keys, such as labels."""
    return {key: str(value) for key, value in get_mapping(made, *keys).items()}


def get_quantities(made: object, *keys: str) -> dict[str, Decimal]:
    """The mapping of Kubernetes' quantities at the end of the keys, such as 250m or 4Gi, as numbers."""
    return {key: to_decimal(value) for key, value in get_mapping(made, *keys).items()}


def to_decimal(text: object) -> Decimal:
    """A quantity of Kubernetes' as a number."""
    from kubernetes.utils.quantity import parse_quantity

    return cast("Decimal", parse_quantity(text))


def object_name(made: Mapping[str, object]) -> str:
    """An object's name."""
    return str(get_mapping(made, "metadata").get("name", ""))


def count_noun(number: int, what: str) -> str:
    """So many of something."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def format_amount(resource: str, value: Decimal) -> str:
    """So much of a resource, as people say it."""
    if resource.endswith("memory"):
        return f"{float(value / 2**30):g} GiB"
    return f"{float(value):g}"
