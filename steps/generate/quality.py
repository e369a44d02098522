"""Running the user's checks. A check that fails marks the image: what nobody could judge is not taken as good."""

from collections.abc import Callable, Sequence
from importlib import import_module
from threading import Lock

import numpy as np
import numpy.typing as npt

from imagekiln.steps.checks import ImageSpec, Verdict
from imagekiln.steps.errors import BadInput, TryAgain, first_line
from imagekiln.steps.imaging.measures import ImageMeasures, measure_image
from imagekiln.steps.job.gates import LOW_CONTRAST, OVER_SATURATED, GateSettings, UserCheckGate
from imagekiln.steps.runs.image import ImageParameters, ImageQuality, ImageRow
from imagekiln.steps.storage.failures import error_reason

MAX_REASON_CHARS = 500
ImageArray = npt.NDArray[np.uint8]
CheckFunction = Callable[[ImageArray, ImageSpec], object]


class UserCheck:
    """One check, called by one thread at a time. Gives a Verdict whatever the function does."""

    def __init__(self, check: UserCheckGate) -> None:
        """Import the function. Raises BadInput where it is not there."""
        self.name = check.name
        self._function = _import_check(check)
        self._lock = Lock()

    def __call__(self, image: ImageArray, row: ImageSpec) -> Verdict:
        """Judge RGB uint8 (height, width, 3). Raises TryAgain where the device or memory failed."""
        given = image.view()
        given.flags.writeable = False
        try:
            with self._lock:
                return _to_verdict(self._function(given, row))
        except Exception as error:  # a stranger's code may raise anything
            from imagekiln.steps.generate.diffusion import (
                device,
            )  # torch, which only they have who make images

            if device.is_device_lost(error) or device.is_out_of_memory(error):
                raise TryAgain(
                    f"the check {self.name} failed ({error_reason(error)}). Run the shard again."
                ) from error
            return Verdict(False, f"the check failed: {type(error).__name__}: {error}")


def load_user_checks(checks: Sequence[UserCheckGate]) -> tuple[UserCheck, ...]:
    """Import every check. Raises BadInput where one is not there."""
    return tuple(UserCheck(check) for check in checks)


def format_verdict(name: str, verdict: Verdict) -> str:
    """What is kept of a verdict: Parquet takes no lone surrogates, and no row may grow without bounds."""
    said = str(verdict.reason)[:MAX_REASON_CHARS].encode(errors="replace").decode()
    return f"{name}: {said}" if said else name


def _import_check(check: UserCheckGate) -> CheckFunction:
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


def _to_verdict(given: object) -> Verdict:
    match given:
        case Verdict():
            return given
        case None:
            return Verdict(True)
        case bool() | np.bool():
            return Verdict(bool(given))
        case _:
            raise TypeError(f"it returned {type(given).__name__}, and not Verdict, bool or None")


class QualityGates:
    """The gates that look at one image at a time. May be called from several threads."""

    def __init__(self, gates: GateSettings) -> None:
        """Import the user's checks. Raises BadInput where one is not there."""
        self._gates = gates
        self._checks = load_user_checks(gates.checks)

    def __call__(self, rgb: npt.NDArray[np.uint8], row: ImageRow) -> ImageQuality:
        """Judge RGB uint8 (height, width, 3). Raises TryAgain where a check of the user's finds no device or memory."""
        measures = measure_image(rgb)
        asked = _to_image_spec(row)
        verdicts = {check.name: check(rgb, asked) for check in self._checks}
        bad = {name: verdict for name, verdict in verdicts.items() if not verdict.ok}
        reason = "; ".join(format_verdict(name, verdict) for name, verdict in bad.items())
        return ImageQuality((*self._failed_measures(measures), *bad), reason or None, measures)

    def _failed_measures(self, measures: ImageMeasures) -> list[str]:
        found = {
            LOW_CONTRAST: measures.contrast < self._gates.low_contrast.below,
            OVER_SATURATED: measures.saturation > self._gates.over_saturated.above,
        }
        return [name for name, marked in found.items() if marked]


def _to_image_spec(row: ImageRow) -> ImageSpec:
    """The image row as a check gets it."""
    pixels = {name: getattr(row.parameters, name) for name in ImageParameters.__slots__}
    return ImageSpec(image_id=row.image_id, id=row.id, image_index=row.image_index, **pixels)
