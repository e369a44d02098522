"""The data that ships with the package, named `bundled:...` in a job so that it means the same anywhere."""

from pathlib import Path

BUNDLED_PREFIX = "bundled:"
BUNDLED_FOLDER = Path(__file__).parent.parent / "datasets"


def resolve_path(name: str) -> str:
    """The path behind a `bundled:` name; any other name as it is, but for a leading `~`."""
    if name.startswith(BUNDLED_PREFIX):
        return str(BUNDLED_FOLDER / name.removeprefix(BUNDLED_PREFIX))
    return str(Path(name).expanduser()) if name.startswith("~") else name
