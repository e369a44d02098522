"""Kubernetes objects as plain values."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from imagekiln.steps.errors import BadInput

Json = dict[str, object]
# What reading an object raises that has not the types which its kind has.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@contextmanager
def reading(kind: str, value: Json) -> Iterator[None]:
    """Raise BadInput where an object, which somebody else may have written, cannot be read."""
    try:
        yield
    except UNREADABLE as error:
        metadata = value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        raise BadInput(
            f"{kind} {name or 'without a name'}: is not as Argo writes it. See what wrote it, and "
            "delete it with kubectl."
        ) from error


def object_metadata(manifest: Json) -> Json:
    """An object's metadata."""
    return cast("Json", manifest["metadata"])


def object_identity(manifest: Json) -> tuple[str, str, str]:
    """An object's kind, namespace and name."""
    metadata = cast("Mapping[str, str]", manifest["metadata"])
    return str(manifest["kind"]), metadata["namespace"], metadata["name"]
