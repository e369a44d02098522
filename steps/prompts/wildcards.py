"""Wildcard files: `NAME.txt` below one folder or URI, each line an option of the wildcard NAME."""

import hashlib
import json
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import PurePosixPath

from imagekiln.steps.errors import BadInput
from imagekiln.steps.prompts.parser import MAX_DEPTH, Mode, parse_option
from imagekiln.steps.prompts.template import (
    Option,
    Options,
    TemplateMistake,
    make_options,
)
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.filesystem import open_filesystem
from imagekiln.steps.storage.uri import resolve_path

SUFFIX = ".txt"


class WildcardFiles:
    """The wildcard files of a folder, listed at creation and read on first use."""

    def __init__(self, folder: str | None) -> None:
        """List the folder's files; none if it is None. Raises BadInput, TryAgain."""
        self._folder = folder
        self._names = [] if folder is None else _list_names(folder)
        self._options: dict[tuple[str, Mode], Options] = {}
        self._contents: dict[str, bytes] = {}
        self.columns: set[str] = set()

    @property
    def digest(self) -> str:
        """A hash of the files that were read, independent of their folder."""
        contents = sorted(self._contents.items())
        digests = [(name, hashlib.sha256(content).hexdigest()) for name, content in contents]
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

    def read_options(self, wildcard: str, mode: Mode, depth: int) -> Options:
        """Read the lines of the files that match a wildcard, in which `*` matches any characters.

        Raises TemplateMistake if there are none, BadInput if a line is wrong, TryAgain.
        """
        key = (wildcard, mode)
        if key in self._options:
            return self._options[key]
        if depth > MAX_DEPTH:
            raise TemplateMistake(
                f"wildcards are nested over {MAX_DEPTH} deep, or name each other in a circle"
            )
        names = self._match(wildcard)
        options = [option for name in names for option in self._parse(name, mode, depth)]
        self._options[key] = make_options(options)
        return self._options[key]

    def _match(self, wildcard: str) -> list[str]:
        if self._folder is None:
            raise TemplateMistake(f"__{wildcard}__ needs a folder of files; set prompts.wildcards")
        names = [name for name in self._names if fnmatchcase(name, wildcard)]
        if names:
            return names
        close = get_close_matches(wildcard, self._names, n=1)
        hint = f"; write __{close[0]}__" if close else "; add one"
        raise TemplateMistake(f"{self._folder} has no {wildcard}{SUFFIX}{hint}")

    def _parse(self, name: str, mode: Mode, depth: int) -> Iterator[Option]:
        where = f"{self._folder}/{name}{SUFFIX}"
        text = self._read(name, where)
        is_empty = True
        for number, line in enumerate(StringIO(text, newline=None), start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            try:
                yield parse_option(line, number, self, mode, depth)
            except TemplateMistake as mistake:
                raise BadInput(f"{where}, {mistake}.") from mistake
            is_empty = False
        if is_empty:
            raise BadInput(f"{where}: has no lines. Add one, or remove __{name}__.")

    def _read(self, name: str, where: str) -> str:
        if name not in self._contents:
            store = open_store(resolve_path(str(self._folder)))
            self._contents[name] = store.read(f"{name}{SUFFIX}")
        content = self._contents[name]
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise BadInput(f"{where}, line {line}: is not UTF-8 text. Save it as UTF-8.") from error


def _list_names(folder: str) -> list[str]:
    """List the sorted names of the wildcards that have files below the folder."""
    if folder.startswith(("http://", "https://")):
        raise BadInput(f"{folder}: folders cannot be listed over HTTP. Use a path or a bucket.")
    filesystem, root = open_filesystem(resolve_path(folder))
    with translate_errors(folder):
        paths = filesystem.find(root)
    names = []
    for path in sorted(paths):
        name = path.removeprefix(root.rstrip("/")).lstrip("/")
        is_hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
        if name.endswith(SUFFIX) and not is_hidden:
            names.append(name.removesuffix(SUFFIX))
    if not names:
        raise BadInput(
            f"{folder}: has no wildcard files, whose names end in {SUFFIX}. "
            "Check prompts.wildcards."
        )
    return names
