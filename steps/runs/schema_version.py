"""The version in a JSON file of ours, which says whether the rest of it can be read."""

from dataclasses import dataclass

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The part of such a file that all versions share. Without a version, it is the first."""

    schema_version: int = 1


SCHEMA_VERSION_ADAPTER: TypeAdapter[SchemaVersion] = TypeAdapter(SchemaVersion)


def read_schema_version(content: bytes) -> int:
    """The version that the file has. Raises pydantic's ValidationError where it has none."""
    return SCHEMA_VERSION_ADAPTER.validate_json(content).schema_version
