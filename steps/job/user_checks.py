"""Import of user-defined checks and scores that a job names.

Modules are searched on Python's path, then beside the job file and in the current folder.
"""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import ModuleType

from imagekiln.steps.errors import BadInput, first_line
from imagekiln.steps.job.gates import UserCheckGate
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.scores import OwnScore
from imagekiln.steps.job.settings_file import SettingPath, format_path

# Importing runs the user's code, which may raise anything.
IMPORT_ERRORS = (Exception, SystemExit)
CURRENT_FOLDER = ""  # on Python's path
UserCheckFunction = Callable[..., object]


class NotImported(BadInput):
    """The module of an entry is not on this machine, or raises on import."""


def require_entries(job: Job) -> None:
    """Import the functions that the job names. Raises BadInput with a sentence per failure."""
    if untried := find_untried_entries(job):
        raise NotImported(*untried)


def find_untried_entries(job: Job) -> tuple[str, ...]:
    """Return a sentence per module that is not importable here, but may be in pods.

    Raises BadInput if a module is importable and lacks the function.
    """
    untried: list[str] = []
    mistakes: list[str] = []
    for _, find in _entries(job):
        try:
            find()
        except BadInput as error:
            sentences = untried if isinstance(error, NotImported) else mistakes
            sentences.append(str(error))
    if mistakes:
        raise BadInput(*mistakes)
    return tuple(untried)


def hash_entries(job: Job) -> dict[str, str]:
    """Hash the files of the job's user-defined functions, as far as they are importable here."""
    hashes: dict[str, str] = {}
    for path, find in _entries(job):
        with suppress(BadInput, TypeError, OSError):  # functions written in C have no file
            file = inspect.getfile(find())
            hashes[format_path(path)] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return hashes


def import_entries(job: Job) -> None:
    """Import the functions that a planned job names. Raises BadInput at the first failure."""
    for _, find in _entries(job):
        find()


def _entries(job: Job) -> Iterator[tuple[SettingPath, Callable[[], UserCheckFunction]]]:
    """Yield the settings that name user-defined functions, each with its importer."""
    for index, check in enumerate(job.gates.checks):
        yield ("gates", "checks", index, "entry"), partial(import_check, check)
    for name, score in job.scores.items():
        if isinstance(score, OwnScore):
            yield ("scores", name, "entry"), partial(import_score, f"scores.{name}", score.entry)


def import_check(check: UserCheckGate) -> UserCheckFunction:
    """Import the function of a check. Raises BadInput if it cannot be imported."""
    return _import_entry(f"gates.checks: {check.name}", check.entry, ("image", "spec"))


def import_score(setting: str, entry: str) -> UserCheckFunction:
    """Import the function or class of a score. Raises BadInput if it cannot be imported."""
    return _import_entry(setting, entry, ("images", "specs"))


def _import_entry(setting: str, entry: str, arguments: tuple[str, ...]) -> UserCheckFunction:
    """Import the function or class that a setting names, and check that it takes `arguments`."""
    module_name, _, name = entry.partition(":")
    module = _import_module(f"{setting}: {entry}", module_name)
    try:
        function = getattr(module, name)
    except IMPORT_ERRORS as error:  # a module may define `__getattr__`
        near = get_close_matches(name, vars(module), n=1)
        remedy = f"Write {module_name}:{near[0]}." if near else "Correct the entry."
        raise BadInput(
            f"{setting}: {entry} does not import ({_import_reason(error)}). {remedy}"
        ) from error
    if not callable(function):
        raise BadInput(f"{setting}: {entry} is not a function. Choose a function.")
    if isinstance(function, type) and setting.startswith("scores."):
        arguments = ("device",)
    _require_arguments(f"{setting}: {entry}", function, arguments)
    return function  # type: ignore[no-any-return]  # the user's, of any type


def _import_module(subject: str, name: str) -> ModuleType:
    search_modules_in(CURRENT_FOLDER)
    try:
        with redirect_stdout(sys.stderr):  # keep its output apart from results
            return importlib.import_module(name)
    except IMPORT_ERRORS as error:
        remedy = "Correct the module, or install what it needs where images are made."
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            remedy = (
                f"Put {name.replace('.', '/')}.py into the current folder or beside the job that "
                "the command names, or install it where images are made, or correct the entry."
            )
        if name.endswith(".py"):
            remedy = f"Write {subject.rpartition(' ')[2].replace('.py:', ':')}."
        raise NotImported(
            f"{subject} does not import ({_import_reason(error)}). {remedy}"
        ) from error


def search_modules_in(folder: str) -> None:
    """Append a folder to Python's path, after all installed modules."""
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()


def _require_arguments(
    subject: str, function: UserCheckFunction, arguments: tuple[str, ...]
) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some functions in C have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise BadInput(
            f"{subject} does not take the arguments ({', '.join(arguments)}): {error}. Correct it."
        ) from error


def _import_reason(error: BaseException) -> str:
    return first_line(f"{type(error).__name__}: {error}")
