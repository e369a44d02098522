"""The tuning file, read and written as a whole. It may come from anybody, and people write in it."""

from pathlib import Path

import yaml
from pydantic import ValidationError

from imagekiln.steps.errors import BadInput, Missing, first_line
from imagekiln.steps.mistakes import describe_validation_errors
from imagekiln.steps.remote import is_remote_uri
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.tuning import MAX_TUNING_ENTRIES, TuningEntry, TuningFile

TUNING_VERSION = 1
MAX_TUNING_FILE_BYTES = 8 * 2**20
MAX_REPORTED_ERRORS = 5  # mistakes: a file with one mistake may have it in every entry
TUNING_FILE_HEADER = "# What `imagekiln tune` measured. A job reads it by batch.tuning.\n"


def read_tuning_file(name: str) -> TuningFile:
    """The tuning file at a path or URI. Raises Missing, BadInput with what is wrong in it, TryAgain."""
    store, key = _split_store_and_key(name)
    with store.open(key) as file:
        content = file.read(MAX_TUNING_FILE_BYTES + 1)
    if len(content) > MAX_TUNING_FILE_BYTES:
        raise BadInput(f"{name}: is larger than {MAX_TUNING_FILE_BYTES} bytes, so it is no tuning file. Name another.")
    return parse_tuning_file(content, name)


def read_tuning_file_or_empty(name: str) -> TuningFile:
    """The same, where there need not be one yet."""
    try:
        return read_tuning_file(name)
    except Missing:
        return TuningFile()


def add_tuning_entry(name: str, entry: TuningEntry) -> None:
    """Write an entry into the file, in place of the one with its key. Raises BadInput, TryAgain."""
    others = [each for each in read_tuning_file_or_empty(name).entries if each.tuning_key != entry.tuning_key]
    if len(others) >= MAX_TUNING_ENTRIES:
        raise BadInput(f"{name}: has {len(others)} entries, and no more fit. Remove old ones, or name another --file.")
    _write_tuning_file(name, TuningFile(entries=tuple(sorted([*others, entry], key=lambda each: each.tuning_key))))


def require_writable_tuning_file(name: str) -> None:
    """Write the file as it is, or an empty one, before anything is measured in vain. Raises BadInput, TryAgain."""
    _write_tuning_file(name, read_tuning_file_or_empty(name))


def tuning_to_yaml(tuning: TuningFile) -> bytes:
    """The file's bytes, without what is at its default."""
    # `version` is a default too, and the one thing that must be there.
    values = {"version": TUNING_VERSION} | tuning.model_dump(mode="json", exclude_defaults=True)
    return (TUNING_FILE_HEADER + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)).encode()


def parse_tuning_file(content: bytes, name: str) -> TuningFile:
    """The tuning file in these bytes, YAML or JSON. Raises BadInput, a sentence for each of the first mistakes."""
    try:
        values = yaml.safe_load(content.decode("utf-8-sig"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{name}: is no tuning file ({first_line(str(error))}). Correct it, or tune anew.") from error
    if not isinstance(values, dict) or "version" not in values:
        raise BadInput(f"{name}: is no tuning file: it has no version. Name one that `imagekiln tune` wrote.")
    if (version := values["version"]) != TUNING_VERSION:
        said = f"version {version}" if isinstance(version, int) else "another version"
        raise BadInput(f"{name}: has {said}, and this Imagekiln reads {TUNING_VERSION}. Use its own, or tune anew.")
    try:
        return TuningFile.model_validate(values)
    except ValidationError as error:
        raise BadInput(
            *describe_validation_errors(TuningFile, error.errors()[:MAX_REPORTED_ERRORS], name, {})
        ) from error


def _write_tuning_file(name: str, tuning: TuningFile) -> None:
    store, key = _split_store_and_key(name)
    store.replace(key, tuning_to_yaml(tuning))


def _split_store_and_key(name: str) -> tuple[Store, str]:
    if is_remote_uri(name):
        folder, _, key = name.rpartition("/")
        return open_store(folder), key
    path = Path(name.removeprefix("file://")).expanduser()
    return open_store(str(path.parent)), path.name
