"""Which gates mark an image."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from imagekiln.steps.checks import ImageSpec, Verdict
from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.encoder import (
    MAX_REASON_CHARS,
    QualityGates,
    UserCheck,
    format_verdict,
)
from imagekiln.steps.job.gates import GateSettings, UserCheckGate
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


def test_checks_mark_after_measures_each_with_its_reason() -> None:
    names = ("even", "silent", "raises", "dark")
    checks = tuple(
        UserCheckGate(name=f"my_{name}", entry=f"tests.own_checks:{name}") for name in names
    )
    found = QualityGates(GateSettings(checks=checks))(PALE, image_row("a circle", seed=3))
    assert found.failed_gates == ("low_contrast", "my_even", "my_raises", "my_dark")
    assert found.reason == (
        "my_even: seed 3 is odd; "
        "my_raises: the check failed: ValueError: no verdict on a circle ?; my_dark"
    )


RGB = np.full((8, 8, 3), 200, np.uint8)


def row(seed: int = 1, prompt: str = "a circle") -> ImageSpec:
    return ImageSpec("0" * 32, None, 0, prompt, "", seed, 8, 8, 2, 3.0, "default")


def _check(function: str) -> UserCheck:
    return UserCheck(UserCheckGate(name="own", entry=f"tests.own_checks:{function}"))


@pytest.mark.parametrize(
    ("function", "seed", "verdict"),
    [
        ("even", 2, Verdict(True, "seed 2 is odd")),
        ("even", 3, Verdict(False, "seed 3 is odd")),
        ("dark", 1, Verdict(False)),
        ("silent", 1, Verdict(True)),
        (
            "number",
            1,
            Verdict(
                False,
                "the check failed: TypeError: it returned float, not Verdict, bool or None",
            ),
        ),
    ],
)
def test_a_verdict_is_what_the_function_returned(
    function: str, seed: int, verdict: Verdict
) -> None:
    assert _check(function)(RGB, row(seed)) == verdict


def test_a_check_that_fails_takes_the_image_for_bad() -> None:
    verdict = _check("raises")(RGB, row(prompt="x" * 1000))
    assert not verdict.ok
    said = format_verdict("own", verdict)
    assert said.startswith("own: the check failed: ValueError: no verdict on xxx")
    assert len(said) <= MAX_REASON_CHARS + len("own: ")


def test_a_check_that_exits_takes_the_image_for_bad_and_ends_nothing() -> None:
    verdict = _check("exits")(RGB, row())
    assert (verdict.ok, verdict.reason) == (False, "the check failed: it called exit()")


def test_what_is_kept_of_a_verdict_can_be_written() -> None:
    assert format_verdict("own", _check("raises")(RGB, row())).encode()
    assert format_verdict("own", Verdict(False)) == "own"


def test_a_check_cannot_change_the_image() -> None:
    rgb = RGB.copy()
    verdict = _check("changes")(rgb, row())
    assert "read-only" in verdict.reason
    assert (rgb == 200).all()
    assert rgb.flags.writeable


def test_a_check_without_memory_is_no_verdict_but_tried_again() -> None:
    with pytest.raises(TryAgain, match=r"the check own: .* no room for it \(no room\)\. Run"):
        _check("full")(RGB, row())


def test_a_check_whose_device_failed_is_no_verdict_but_tried_again() -> None:
    with pytest.raises(TryAgain, match=r"the device failed .*illegal memory access"):
        _check("crashes")(RGB, row())


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("no_such_package.module:check", "does not import .ModuleNotFoundError: No module named"),
        ("tests.own_checks:missing", "does not import .AttributeError"),
        ("tests.own_checks:NOT_CALLABLE", "is not a function"),
    ],
)
def test_a_check_that_is_not_there_is_bad_input(entry: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"gates.checks: own: {entry} {said}"):
        UserCheck(UserCheckGate(name="own", entry=entry))


def test_the_check_in_the_docs_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "quality.md").read_text()
    shown = next(
        text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def check" in text
    )
    (tmp_path / "shown_in_the_docs.py").write_text(shown)
    monkeypatch.syspath_prepend(tmp_path)
    check = UserCheck(UserCheckGate(name="own", entry="shown_in_the_docs:check"))
    asked = row(prompt="a circle, white background")
    assert check(RGB, asked) == Verdict(True, "brightness 0.78 at the top")
    assert check(RGB // 4, asked) == Verdict(False, "brightness 0.20 at the top")
    assert check(RGB // 4, row()).ok
