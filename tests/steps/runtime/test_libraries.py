"""What PyTorch's threads are told before it is imported."""

import io
import logging
import os
import struct
import warnings

import pytest
from PIL import Image as Pillow

from imagekiln.steps.imaging.input_images import ImageInspector
from imagekiln.steps.runtime.machine import limit_spinning, silence_libraries

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)


def test_threads_spin_briefly() -> None:
    limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == "10000"


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_sets_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "ACTIVE")
    limit_spinning()
    assert {each: os.environ[each] for each in VARIABLES if each in os.environ} == {name: "ACTIVE"}


@pytest.mark.parametrize("debug", [False, True])
def test_gcsfs_logs_failed_requests_only_when_asked_to(
    monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    logger = logging.getLogger("gcsfs")
    level = logger.level
    logger.setLevel(logging.NOTSET)
    monkeypatch.delenv("GCSFS_DEBUG", raising=False)
    if debug:
        monkeypatch.setenv("GCSFS_DEBUG", "1")
    silence_libraries()
    logs_errors = logger.isEnabledFor(logging.ERROR)
    logger.setLevel(level)
    assert logs_errors is debug


def test_an_image_with_a_thousand_damaged_tags_writes_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tags = [struct.pack("<HHII", tag, 2, 2**31 - 1, 8) for tag in range(256, 1256)]
    exif = b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + b"".join(tags) + bytes(4)
    file = io.BytesIO()
    Pillow.new("RGB", (8, 8)).save(file, "PNG", exif=exif)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        silence_libraries()
        ImageInspector().inspect(file.getvalue())
    assert capsys.readouterr().err == ""
