"""TODO."""

from collections.abc import Mapping
from typing import cast

Json = dict[str, object]


def object_metadata(made: Json) -> Json:
    """An object's metadata."""
    return cast("Json", made["metadata"])


def object_identity(made: Json) -> tuple[str, str, str]:
    """An object's kind, namespace and name."""
    about = cast("Mapping[str, str]", made["metadata"])
    return str(made["kind"]), about["namespace"], about["name"]
