"""Which gates mark an image."""

import numpy as np
import numpy.typing as npt
import pytest

from imagekiln.steps.generate.quality import QualityGates
from imagekiln.steps.job.gates import GateSettings, LowContrastGate, UserCheckGate
from tests.runs import image_row

NOISE = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
PALE = NOISE // 64 + 200
VIVID = np.where(NOISE[..., :1] > 127, (255, 0, 0), (0, 0, 255)).astype(np.uint8)


@pytest.mark.parametrize(
    ("rgb", "marks"), [(NOISE, ()), (PALE, ("low_contrast",)), (VIVID, ("over_saturated",))]
)
def test_what_is_measured_decides_the_marks(
    rgb: npt.NDArray[np.uint8], marks: tuple[str, ...]
) -> None:
    found = QualityGates(GateSettings())(rgb, image_row())
    assert found.failed_gates == marks
    assert found.reason is None
    assert found == QualityGates(GateSettings())(rgb.copy(), image_row())


def test_thresholds_are_the_job_s() -> None:
    assert (
        QualityGates(GateSettings(low_contrast=LowContrastGate(below=0.0)))(
            PALE, image_row()
        ).failed_gates
        == ()
    )
    assert QualityGates(GateSettings(low_contrast=LowContrastGate(below=0.5)))(
        NOISE, image_row()
    ).failed_gates == ("low_contrast",)


def test_checks_mark_after_measures_each_with_its_reason() -> None:
    names = ("even", "silent", "raises", "dark")
    checks = tuple(
        UserCheckGate(name=f"my_{name}", entry=f"tests.own_checks:{name}") for name in names
    )
    found = QualityGates(GateSettings(checks=checks))(PALE, image_row("a circle", seed=3))
    assert found.failed_gates == ("low_contrast", "my_even", "my_raises", "my_dark")
    assert found.reason == (
        "my_even: seed 3 is odd; my_raises: the check failed: ValueError: no verdict on a circle ?; my_dark"
    )
