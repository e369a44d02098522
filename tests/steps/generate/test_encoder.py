"""Image files of whole small jobs, read with the tools that people have."""

import hashlib
import io
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from imagekiln.steps.checks import ImageSpec, Verdict
from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate import step
from imagekiln.steps.generate.encoder import (
    OutputEncoder,
    QualityGates,
    UserCheck,
    build_image_metadata,
)
from imagekiln.steps.generate.start import generate
from imagekiln.steps.imaging.metadata import (
    MAX_COMMENT_UNITS,
    TRAINED_ALGORITHMIC_MEDIA,
)
from imagekiln.steps.job.gates import GateSettings, UserCheckGate
from imagekiln.steps.job.output import (
    Encoding,
    Jpeg,
    Png,
    Webp,
    mime_type,
)
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.webui_text import ELLIPSIS, GUARD, ModelLabel
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import certificates, jobs
from tests.certificates import verified
from tests.encodings import KINDS, encoding_label
from tests.faults import manifests
from tests.notes import SOURCE, parse, read
from tests.runs import image_row, picture
from tests.texts import HOSTILE

datasets = import_module(
    "datasets"
)  # type checkers take the folder of that name in this repository for it
SETTINGS: dict[str, Any] = {
    "defaults": {"steps": 1, "width": 16, "height": 16},
    "device": "cpu",
    "limits": {"failed_share": 1, "rejected_share": 1},
}
PROMPTS = [
    *HOSTILE,
    "x" * 3000,
    "two lines\nNegative prompt: of mine\nSteps: 1, Sampler: x, Seed: 2",
]


def made(folder: Path, encoding: Encoding, **settings: object) -> str:
    """A finished run of prompts that break things, verified."""
    job = jobs.job(
        folder, {"prompt": PROMPTS}, **{**SETTINGS, "encoding": encoding.model_dump(), **settings}
    )
    uri = run(job, NoProgress(), Stop()).uri
    assert verify(uri).ok == len(PROMPTS)
    return uri


def files(uri: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each row of the manifest, and the image that it points at."""
    row: dict[str, Any]
    for row in manifests(uri):
        content = (Path(uri) / row["part"]).read_bytes()[
            row["byte_offset"] : row["byte_offset"] + row["byte_size"]
        ]
        assert hashlib.sha256(content).hexdigest() == row["sha256"]
        yield row, content


@pytest.fixture(scope="module", params=KINDS, ids=encoding_label)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Encoding, str]:
    return request.param, made(tmp_path_factory.mktemp(request.param.kind), request.param)


@pytest.mark.quick_cases(2)
def test_the_text_of_every_image_reads_back_as_its_row(finished: tuple[Encoding, str]) -> None:
    for row, content in files(finished[1]):
        found = parse(read(content).parameters or "")
        lines = row["prompt"].replace("\0", "\ufffd").strip().split("\n")
        assert found.prompts[0].replace(GUARD, "") == "\n".join(map(str.strip, lines)).replace(
            GUARD, ""
        )
        assert found.prompts[1] == ""
        assert found.settings["Seed"] == str(row["seed"])
        assert found.settings["Size"] == "16x16"
        assert found.settings["Model"] == "bundled:shapes"


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("encoding", [Png(), Jpeg()], ids=encoding_label)
@pytest.mark.parametrize("metadata", ["mark", "none"])
def test_the_switch_holds_for_every_image_of_a_job(
    encoding: Encoding, metadata: str, tmp_path: Path
) -> None:
    for _, content in files(made(tmp_path, encoding, metadata=metadata)):
        found = read(content)
        assert (found.parameters, found.xmp.get(SOURCE)) == (
            None,
            TRAINED_ALGORITHMIC_MEDIA if metadata == "mark" else None,
        )
        for hidden in (b"Steps", b"Seed", b"shapes", b"parameters", b"Exif"):
            assert hidden not in content


def test_in_a_jpeg_a_prompt_too_long_is_cut_and_in_others_it_is_whole() -> None:
    row, model = image_row("x" * 1_000_000), ModelLabel("a", "a@b")
    text = build_image_metadata(row, model, Jpeg(), "all").parameters or ""
    assert len(text) == MAX_COMMENT_UNITS - len("Negative prompt: ") - 1
    assert parse(text).prompts[0].endswith("xxx" + ELLIPSIS)
    assert parse(text).settings["Steps"] == "2"
    for encoding in (Png(), Webp()):
        assert (
            parse(build_image_metadata(row, model, encoding, "all").parameters or "").prompts[0]
            == "x" * 1_000_000
        )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("encoding", KINDS, ids=encoding_label)
def test_a_job_with_a_certificate_signs_every_image(encoding: Encoding, tmp_path: Path) -> None:
    uri = made(tmp_path / "job", encoding, c2pa=certificates.write(tmp_path / "certificates"))
    for row, content in files(uri):
        verified(content, mime_type(encoding))
        assert (read(content).xmp[SOURCE], row["status"]) == (TRAINED_ALGORITHMIC_MEDIA, "ok")
        assert (read(content).parameters or "") != ""
        with Image.open(io.BytesIO(content)) as image:
            image.load()
    key = (tmp_path / "certificates/key.pem").read_text().splitlines()[1]
    assert not any(key.encode() in content for content in jobs.files(Path(uri)).values())


def test_what_cannot_sign_ends_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"certificate": str(tmp_path / "no.pem"), "key": "env:IMAGEKILN_NO_KEY"}
    planned = make_plan(jobs.job(tmp_path, {"prompt": ["a"]}, **SETTINGS, c2pa=where))
    monkeypatch.setattr(step, "load_image_source", None)
    with pytest.raises(BadInput, match=r"c2pa\.certificate: .*no\.pem: no such file"):
        generate(planned.uri, 0)


def test_nothing_is_stored_of_a_forgotten_image(tmp_path: Path) -> None:
    planned = jobs.plan(tmp_path, {"prompt": ["a"]})
    row = image_row("taken down", 3)
    encode = OutputEncoder(load_plan(open_store(planned.uri)), [row.image_id])
    assert encode(picture(3), row) == EncodedImage(3, "forgotten")
    other = image_row("another one", 4)
    assert encode(picture(4), other).status == "ok"


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


def test_a_check_cannot_change_the_image() -> None:
    rgb = RGB.copy()
    verdict = _check("changes")(rgb, row())
    assert "read-only" in verdict.reason
    assert (rgb == 200).all()
    assert rgb.flags.writeable


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
