"""Judging an image: what is measured of it, and which gates mark it."""

import numpy as np
import numpy.typing as npt

from imagekiln.steps import user_checks
from imagekiln.steps.checks import ImageSpec
from imagekiln.steps.gate_settings import LOW_CONTRAST, OVER_SATURATED, GateSettings
from imagekiln.steps.identity import ImageParameters
from imagekiln.steps.measures import ImageMeasures, measure_image
from imagekiln.steps.quality import ImageQuality
from imagekiln.steps.rows import ImageRow


class QualityGates:
    """The gates that look at one image at a time. May be called from several threads."""

    def __init__(self, gates: GateSettings) -> None:
        """Import the user's checks. Raises BadInput where one is not there."""
        self._gates = gates
        self._checks = user_checks.load_user_checks(gates.checks)

    def __call__(self, rgb: npt.NDArray[np.uint8], row: ImageRow) -> ImageQuality:
        """Judge RGB uint8 (height, width, 3). Raises TryAgain where a check of the user's finds no device or memory."""
        measures = measure_image(rgb)
        asked = _to_image_spec(row)
        verdicts = {check.name: check(rgb, asked) for check in self._checks}
        bad = {name: verdict for name, verdict in verdicts.items() if not verdict.ok}
        reason = "; ".join(user_checks.format_verdict(name, verdict) for name, verdict in bad.items())
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
