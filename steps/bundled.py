"""The data that ships with the package, named `bundled:...` in a job so that it means the same anywhere."""

from pathlib import Path

PREFIX = "bundled:"
FOLDER = Path(__file__).parent.parent / "datasets"


def local(name: str) -> str:
    """The path behind a `bundled:` name; any other name as it is, but for a leading `~`."""
    if name.startswith(PREFIX):
        return str(FOLDER / name.removeprefix(PREFIX))
    return str(Path(name).expanduser()) if name.startswith("~") else name
