"""The files in a model's folder, from whoever made it: those that libraries would read."""

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage.failures import translate_errors

MAX_ENTRIES = 10_000  # a model has dozens; a link may lead to a whole disk


def list_files(folder: Path, name: str) -> list[Path]:
    """The files of what errors call `name`, but for hidden ones, also behind links to folders.

    Raises BadInput where something is no file or folder, or there are too many, Missing, TryAgain.
    """
    files: list[Path] = []
    with translate_errors(name):
        for number, path in enumerate(_iter_entries(folder)):
            if number == MAX_ENTRIES:
                raise BadInput(
                    f"{name}: has more than {MAX_ENTRIES:,} files, so it is no model. "
                    "Remove what does not belong to it, such as links to other folders."
                )
            mode = path.stat().st_mode
            if stat.S_ISREG(mode):
                files.append(path)
            elif not stat.S_ISDIR(mode):
                place = path.relative_to(folder)
                raise BadInput(f"{name}: {place} is a pipe or a device. Remove it.")
    return files


def _iter_entries(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """What is in a folder, without links that lead nowhere or back to a folder above."""
    real = folder.resolve()
    if real in above:
        return
    paths: list[Path] = []
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        paths = list(folder.iterdir())
    for path in paths:
        if path.name.startswith(".") or not path.exists():
            continue
        yield path
        if path.is_dir():
            yield from _iter_entries(path, (*above, real))
