"""Judging an image: what is measured of it, and which gates mark it."""

import numpy as np
import numpy.typing as npt

from imagekiln.steps import user_checks
from imagekiln.steps.checks import Row
from imagekiln.steps.gate_settings import LOW_CONTRAST, OVER_SATURATED, Gates
from imagekiln.steps.identity import Pixels
from imagekiln.steps.measures import Measures, measure
from imagekiln.steps.quality import Quality
from imagekiln.steps.rows import ImageRow


class Judge:
    """The gates that look at one image at a time. May be called from several threads."""

    def __init__(self, gates: Gates) -> None:
        """Import the user's checks. Raises BadInput where one is not there."""
        self._gates = gates
        self._checks = user_checks.load(gates.checks)

    def __call__(self, rgb: npt.NDArray[np.uint8], row: ImageRow) -> Quality:
        """Judge RGB uint8 (height, width, 3). Raises TryAgain where a check of the user's finds no device or memory."""
        measures = measure(rgb)
        asked = _row(row)
        verdicts = {check.name: check(rgb, asked) for check in self._checks}
        bad = {name: verdict for name, verdict in verdicts.items() if not verdict.ok}
        reason = "; ".join(user_checks.told(name, verdict) for name, verdict in bad.items())
        return Quality((*self._measured(measures), *bad), reason or None, measures)

    def _measured(self, measures: Measures) -> list[str]:
        found = {
            LOW_CONTRAST: measures.contrast < self._gates.low_contrast.below,
            OVER_SATURATED: measures.saturation > self._gates.over_saturated.above,
        }
        return [name for name, marked in found.items() if marked]


def _row(row: ImageRow) -> Row:
    """The image row as a check gets it."""
    pixels = {name: getattr(row.pixels, name) for name in Pixels.__slots__}
    return Row(image_id=row.image_id, id=row.id, image_index=row.image_index, **pixels)
