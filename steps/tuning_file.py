"""The tuning file, read and written as a whole. It may come from anybody, and people write in it."""

from pathlib import Path

import yaml
from pydantic import ValidationError

from imagekiln.steps.errors import BadInput, Missing, first_line
from imagekiln.steps.mistakes import sentences
from imagekiln.steps.remote import is_remote
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.tuning import MOST_ENTRIES, Entry, Tuning

VERSION = 1
MOST_BYTES = 8 * 2**20
MOST_SAID = 5  # mistakes: a file with one mistake may have it in every entry
HEADER = "# What `imagekiln tune` measured. A job reads it by batch.tuning.\n"


def read(name: str) -> Tuning:
    """The tuning file at a path or URI. Raises Missing, BadInput with what is wrong in it, TryAgain."""
    store, key = _place(name)
    with store.open(key) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise BadInput(f"{name}: is larger than {MOST_BYTES} bytes, so it is no tuning file. Name another.")
    return parse(content, name)


def read_or_empty(name: str) -> Tuning:
    """The same, where there need not be one yet."""
    try:
        return read(name)
    except Missing:
        return Tuning()


def add(name: str, entry: Entry) -> None:
    """Write an entry into the file, in place of the one with its key. Raises BadInput, TryAgain."""
    others = [each for each in read_or_empty(name).entries if each.key != entry.key]
    if len(others) >= MOST_ENTRIES:
        raise BadInput(f"{name}: has {len(others)} entries, and no more fit. Remove old ones, or name another --file.")
    _write(name, Tuning(entries=tuple(sorted([*others, entry], key=lambda each: each.key))))


def require_writable(name: str) -> None:
    """Write the file as it is, or an empty one, before anything is measured in vain. Raises BadInput, TryAgain."""
    _write(name, read_or_empty(name))


def to_yaml(tuning: Tuning) -> bytes:
    """The file's bytes, without what is at its default."""
    # `version` is a default too, and the one thing that must be there.
    values = {"version": VERSION} | tuning.model_dump(mode="json", exclude_defaults=True)
    return (HEADER + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)).encode()


def parse(content: bytes, name: str) -> Tuning:
    """The tuning file in these bytes, YAML or JSON. Raises BadInput, a sentence for each of the first mistakes."""
    try:
        values = yaml.safe_load(content.decode("utf-8-sig"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{name}: is no tuning file ({first_line(str(error))}). Correct it, or tune anew.") from error
    if not isinstance(values, dict) or "version" not in values:
        raise BadInput(f"{name}: is no tuning file: it has no version. Name one that `imagekiln tune` wrote.")
    if (version := values["version"]) != VERSION:
        said = f"version {version}" if isinstance(version, int) else "another version"
        raise BadInput(f"{name}: has {said}, and this Imagekiln reads {VERSION}. Use its own, or tune anew.")
    try:
        return Tuning.model_validate(values)
    except ValidationError as error:
        raise BadInput(*sentences(Tuning, error.errors()[:MOST_SAID], name, {})) from error


def _write(name: str, tuning: Tuning) -> None:
    store, key = _place(name)
    store.replace(key, to_yaml(tuning))


def _place(name: str) -> tuple[Store, str]:
    if is_remote(name):
        folder, _, key = name.rpartition("/")
        return open_store(folder), key
    path = Path(name.removeprefix("file://")).expanduser()
    return open_store(str(path.parent)), path.name
