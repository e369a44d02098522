"""Wildcard files: `NAME.txt` below one folder or URI, each line an option of the wildcard NAME."""

import hashlib
import json
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from imagekiln.steps.errors import BadInput
from imagekiln.steps.prompts.syntax import Option, TemplateMistake, parse_option
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.object_store import open_filesystem
from imagekiln.steps.storage.uri import resolve_path

SUFFIX = ".txt"
MAX_BYTES = 64 * 2**20  # of all files that a template names
MAX_LINES = 250_000


class WildcardFiles:
    """The wildcard files of a folder, listed at once and read as templates name them."""

    def __init__(self, folder: str | None) -> None:
        """Without a folder, there are none. Raises BadInput, TryAgain."""
        self._folder = folder
        self._paths = {} if folder is None else _list_files(folder)
        self._options: dict[str, tuple[Option, ...]] = {}
        self._digests: dict[str, str] = {}
        self._bytes = 0
        self._lines = 0

    @property
    def digest(self) -> str:
        """A hash of the files that were read, whatever folder they are in."""
        digests = sorted(self._digests.items())
        content = json.dumps(digests)
        return hashlib.sha256(content.encode()).hexdigest()

    def read_options(self, wildcard: str) -> tuple[Option, ...]:
        """The lines of the files of that name, in which `*` stands for any characters.

        Equal lines are one option with the sum of their weights. Raises TemplateMistake where there
        is no such file, BadInput where one is wrong, TryAgain.
        """
        options: dict[str, Option] = {}
        for name in self._match(wildcard):
            for option in self._read(name):
                add_option(options, option)
        return tuple(options.values())

    def _match(self, wildcard: str) -> list[str]:
        if self._folder is None:
            raise TemplateMistake(f"__{wildcard}__ needs a folder of files; set prompts.wildcards")
        names = [name for name in self._paths if fnmatchcase(name, wildcard)]
        if names:
            return names
        close = get_close_matches(wildcard, self._paths, n=1)
        hint = f"; did you mean __{close[0]}__?" if close else "; add one"
        raise TemplateMistake(f"{self._folder} has no {wildcard}{SUFFIX}{hint}")

    def _read(self, name: str) -> tuple[Option, ...]:
        if name not in self._options:
            self._options[name] = self._parse(name)
        return self._options[name]

    def _parse(self, name: str) -> tuple[Option, ...]:
        where = f"{self._folder}/{name}{SUFFIX}"
        options = []
        for number, line in enumerate(self._load(name, where).splitlines(), start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            try:
                options.append(parse_option(line, number))
            except TemplateMistake as mistake:
                raise BadInput(f"{where}, {mistake}.") from mistake
        if not options:
            raise BadInput(f"{where}: has no lines. Add one, or remove __{name}__.")
        self._lines += len(options)
        if self._lines > MAX_LINES:
            raise BadInput(f"{where}: with it, there are over {MAX_LINES} lines. Use fewer.")
        return tuple(options)

    def _load(self, name: str, where: str) -> str:
        folder = resolve_path(str(self._folder))
        path = self._paths[name]
        rest = MAX_BYTES - self._bytes
        filesystem, _ = open_filesystem(folder)
        with translate_errors(where), filesystem.open(path, "rb") as file:
            content = file.read(rest + 1)
        self._bytes += len(content)
        if self._bytes > MAX_BYTES:
            raise BadInput(f"{where}: with it, the files have over {MAX_BYTES} bytes. Use less.")
        self._digests[name] = hashlib.sha256(content).hexdigest()
        return _decode(content, where)


def _decode(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{where}, line {line}: is not UTF-8 text. Save it as UTF-8.") from error


def add_option(options: dict[str, Option], option: Option) -> None:
    """Add an option to those before it; an equal one gets the weights of both."""
    earlier = options.get(option.source)
    if earlier is not None:
        option = Option(option.source, earlier.weight + option.weight, option.body)
    options[option.source] = option


def _list_files(folder: str) -> dict[str, str]:
    """The paths of the files below the folder by their wildcards' names, in their order."""
    if folder.startswith(("http://", "https://")):
        raise BadInput(f"{folder}: folders cannot be listed over HTTP. Use a path or a bucket.")
    filesystem, root = open_filesystem(resolve_path(folder))
    root = root.rstrip("/")
    with translate_errors(folder):
        paths = filesystem.find(root)
    names = {}
    for path in sorted(paths):
        name = path.removeprefix(root).lstrip("/")
        is_hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
        if name.endswith(SUFFIX) and not is_hidden:
            names[name.removesuffix(SUFFIX)] = path
    if not names:
        raise BadInput(
            f"{folder}: has no wildcard files, whose names end in {SUFFIX}. "
            "Check prompts.wildcards."
        )
    return names
