"""Running the user's checks. A check that fails marks the image: what nobody could judge is not taken as good."""

from collections.abc import Callable, Sequence
from importlib import import_module
from threading import Lock

import numpy as np
import numpy.typing as npt

from imagekiln.steps.checks import Row, Verdict
from imagekiln.steps.errors import BadInput, TryAgain, first_line
from imagekiln.steps.gate_settings import Check
from imagekiln.steps.store_errors import reason

REASON_CHARS = 500
Image = npt.NDArray[np.uint8]
Function = Callable[[Image, Row], object]


class UserCheck:
    """One check, called by one thread at a time. Gives a Verdict whatever the function does."""

    def __init__(self, check: Check) -> None:
        """Import the function. Raises BadInput where it is not there."""
        self.name = check.name
        self._function = _imported(check)
        self._lock = Lock()

    def __call__(self, image: Image, row: Row) -> Verdict:
        """Judge RGB uint8 (height, width, 3). Raises TryAgain where the device or memory failed."""
        given = image.view()
        given.flags.writeable = False
        try:
            with self._lock:
                return _verdict(self._function(given, row))
        except Exception as error:  # a stranger's code may raise anything
            from imagekiln.steps import device  # torch, which only they have who make images

            if device.is_lost(error) or device.is_out_of_memory(error):
                raise TryAgain(f"the check {self.name} failed ({reason(error)}). Run the shard again.") from error
            return Verdict(False, f"the check failed: {type(error).__name__}: {error}")


def load(checks: Sequence[Check]) -> tuple[UserCheck, ...]:
    """Import every check. Raises BadInput where one is not there."""
    return tuple(UserCheck(check) for check in checks)


def told(name: str, verdict: Verdict) -> str:
    """What is kept of a verdict: Parquet takes no lone surrogates, and no row may grow without bounds."""
    said = str(verdict.reason)[:REASON_CHARS].encode(errors="replace").decode()
    return f"{name}: {said}" if said else name


def _imported(check: Check) -> Function:
    module, _, name = check.entry.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # importing runs a stranger's code
        said = first_line(f"{type(error).__name__}: {error}")
        raise BadInput(
            f"gates.checks: {check.name}: {check.entry} does not import ({said}). "
            "Install it where images are made, or correct the entry."
        ) from error
    if not callable(function):
        raise BadInput(f"gates.checks: {check.name}: {check.entry} is no function. Name one.")
    return function  # type: ignore[no-any-return]  # it is the user's


def _verdict(given: object) -> Verdict:
    match given:
        case Verdict():
            return given
        case None:
            return Verdict(True)
        case bool() | np.bool():
            return Verdict(bool(given))
        case _:
            raise TypeError(f"it returned {type(given).__name__}, and not Verdict, bool or None")
