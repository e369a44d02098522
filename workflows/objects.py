"""Kubernetes objects as plain values."""

from collections.abc import Mapping
from typing import cast

Json = dict[str, object]


def object_metadata(manifest: Json) -> Json:
    """An object's metadata."""
    return cast("Json", manifest["metadata"])


def object_identity(manifest: Json) -> tuple[str, str, str]:
    """An object's kind, namespace and name."""
    metadata = cast("Mapping[str, str]", manifest["metadata"])
    return str(manifest["kind"]), metadata["namespace"], metadata["name"]
