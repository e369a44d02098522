"""The names of the tensors in a safetensors file, by its header alone."""

from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError, safe_open

from imagekiln.steps.errors import BadInput


def read(path: Path, setting: str) -> Collection[str]:
    """The names of the tensors in the file at `path`, without reading them.

    Raises BadInput where it is no whole safetensors file, OSError where it cannot be opened.
    """
    try:
        # Opened here first, since the library calls any file that it cannot open a missing one.
        with path.open("rb"), safe_open(path, framework="np") as file:
            return frozenset(file.keys())
    except SafetensorError as error:
        raise BadInput(f"{setting}: {path.name} is no whole safetensors file. Fetch it again.") from error
