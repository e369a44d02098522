"""The user's own checks and scores, found by their entries: the function, or why there is none."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType

from imagekiln.steps.errors import BadInput, first_line
from imagekiln.steps.job.gates import UserCheckGate
from imagekiln.steps.job.scores import SCORER_GROUP, AnyScore, OwnScore

# Importing runs the user's code, which may raise anything.
IMPORT_ERRORS = (Exception, SystemExit)
UserCheckFunction = Callable[..., object]


def import_check(check: UserCheckGate) -> UserCheckFunction:
    """The function of a check. Raises BadInput where it cannot be imported."""
    return import_entry(_setting_of(check), check.entry)


def import_entry(setting: str, entry: str) -> UserCheckFunction:
    """The function or class that a setting names. Raises BadInput where it cannot be imported."""
    module, _, _ = _resolve_entry_point(setting, entry).partition(":")
    try:
        imported = import_module(module)
    except IMPORT_ERRORS as error:
        raise _not_importable(setting, entry, error) from error
    return _find_function(setting, entry, imported)


def import_scores(scores: Mapping[str, AnyScore]) -> None:
    """Import the user's own scores. Raises BadInput where one cannot be imported."""
    for name, score in scores.items():
        if isinstance(score, OwnScore):
            import_entry(f"scores.{name}", score.entry)


def find_untried_checks(checks: Sequence[UserCheckGate]) -> tuple[str, ...]:
    """A sentence for each check whose module is not importable here: where pods run, it may be.

    Raises BadInput where a module is importable and has no such function.
    """
    sentences = (_try_entry(_setting_of(check), check.entry) for check in checks)
    return tuple(filter(None, sentences))


def find_untried_scores(scores: Mapping[str, AnyScore]) -> tuple[str, ...]:
    """The same of the user's own scores."""
    sentences = (
        _try_entry(f"scores: {name}", score.entry)
        for name, score in scores.items()
        if isinstance(score, OwnScore) and ":" in score.entry
    )
    return tuple(filter(None, sentences))


def _setting_of(check: UserCheckGate) -> str:
    return f"gates.checks: {check.name}"


def _try_entry(setting: str, entry: str) -> str | None:
    """Why an entry was not tried; None where it was, and is as it must be."""
    module, _, _ = entry.partition(":")
    try:
        imported = import_module(module)
    except IMPORT_ERRORS as error:
        return (
            f"{setting}: {entry} was not tried, since {module} does not "
            f"import here ({_import_reason(error)}). Where images are generated, it must import."
        )
    _find_function(setting, entry, imported)
    return None


def _resolve_entry_point(setting: str, entry: str) -> str:
    """The entry as package.module:name, which entry points of installed packages stand for."""
    if ":" in entry:
        return entry
    points = entry_points(group=SCORER_GROUP)
    if entry not in points.names:
        names = ", ".join(sorted(points.names)) or "none"
        raise BadInput(
            f"{setting}: no installed package has the entry point {entry} in {SCORER_GROUP}; there "
            f"are: {names}. Install it where images are made, or correct the entry."
        )
    return points[entry].value


def _find_function(setting: str, entry: str, module: ModuleType) -> UserCheckFunction:
    _, _, name = _resolve_entry_point(setting, entry).partition(":")
    try:
        function = getattr(module, name)
    except IMPORT_ERRORS as error:  # a module may have code of its own for missing names
        raise _not_importable(setting, entry, error) from error
    if not callable(function):
        raise BadInput(f"{setting}: {entry} is not a function. Choose a function.")
    return function  # type: ignore[no-any-return]  # the user's, of any type


def _not_importable(setting: str, entry: str, error: BaseException) -> BadInput:
    return BadInput(
        f"{setting}: {entry} does not import ({_import_reason(error)}). "
        "Install it where images are made, or correct the entry."
    )


def _import_reason(error: BaseException) -> str:
    return first_line(f"{type(error).__name__}: {error}")
