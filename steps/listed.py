"""What a listing of a store says of one name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object or a folder. `size` is in bytes, `modified` in seconds since 1970, None where nobody says."""

    key: str
    is_folder: bool
    size: int
    modified: float | None


def is_plain_name(name: str) -> bool:
    """Whether a name is one that stays in its folder: others may lie in a bucket, but we never make them."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name
