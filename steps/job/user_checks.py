"""The user's own checks, found by their entries: the function, or why there is none."""

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from imagekiln.steps.errors import BadInput, first_line
from imagekiln.steps.job.gates import UserCheckGate

# Importing runs the user's code, which may raise anything.
IMPORT_ERRORS = (Exception, SystemExit)
UserCheckFunction = Callable[..., object]


def import_check(check: UserCheckGate) -> UserCheckFunction:
    """The function of a check. Raises BadInput where it cannot be imported."""
    module, _, _ = check.entry.partition(":")
    try:
        imported = import_module(module)
    except IMPORT_ERRORS as error:
        raise _not_importable(check, error) from error
    return _find_function(check, imported)


def find_untried_checks(checks: Sequence[UserCheckGate]) -> tuple[str, ...]:
    """A sentence for each check whose module is not importable here: where pods run, it may be.

    Raises BadInput where a module is importable and has no such function.
    """
    sentences = []
    for check in checks:
        module, _, _ = check.entry.partition(":")
        try:
            imported = import_module(module)
        except IMPORT_ERRORS as error:
            sentences.append(
                f"gates.checks: {check.name}: {check.entry} was not tried, since {module} does not "
                f"import here ({_import_reason(error)}). It must where the images are generated."
            )
            continue
        _find_function(check, imported)
    return tuple(sentences)


def _find_function(check: UserCheckGate, module: ModuleType) -> UserCheckFunction:
    _, _, name = check.entry.partition(":")
    try:
        function = getattr(module, name)
    except IMPORT_ERRORS as error:  # a module may have code of its own for missing names
        raise _not_importable(check, error) from error
    if not callable(function):
        raise BadInput(
            f"gates.checks: {check.name}: {check.entry} is not a function. Choose a function."
        )
    return function  # type: ignore[no-any-return]  # the user's, of any type


def _not_importable(check: UserCheckGate, error: BaseException) -> BadInput:
    return BadInput(
        f"gates.checks: {check.name}: {check.entry} does not import ({_import_reason(error)}). "
        "Install it where images are made, or correct the entry."
    )


def _import_reason(error: BaseException) -> str:
    return first_line(f"{type(error).__name__}: {error}")
