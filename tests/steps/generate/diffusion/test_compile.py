"""Compiled networks: equal pictures to the eye, and plain ones where compiling fails."""

import logging
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch._dynamo.config

from imagekiln.steps.generate.diffusion import compile as compile_module
from imagekiln.steps.generate.diffusion.compile import (
    PYTORCH_CACHE_VARIABLE,
    blocks_of,
    create_code_folder,
    denoisers_of,
    log,
)
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.generate.diffusion.patches import compiled_call
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.loras import load_lora_facts
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from tests import loras, models, plain
from tests.models import Kind
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

ON = SpeedSettings(compile="on")
RGB = npt.NDArray[np.uint8]


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the making of kernels, which takes minutes on a CPU: tests/slow has that."""
    monkeypatch.setattr(compile_module, "COMPILE_OPTIONS", {"backend": "eager"})
    # Thousands of lines, which pytest would keep.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    torch.compiler.reset()


@cache
def _one_block_folder() -> Path:
    return models.saved("one-block", models.one_block_sd)


def _one_block() -> models.Untyped:
    """A Stable Diffusion of one block, which is traced in two thirds of the time."""
    return models.copy_of_pipe(_one_block_folder(), torch.float32)


def _pipe(kind: Kind) -> models.Untyped:
    """A small pipeline of the family: `tests/slow` traces larger ones."""
    return _one_block() if kind == "sd" else models.pipe(kind)


def _rows(count: int = 2, **settings: object) -> list[ImageRow]:
    return [image_row(f"a red circle number {place}", place, **settings) for place in range(count)]


def _drawn(denoiser: Denoiser, rows: list[ImageRow], size: int = 2) -> list[RGB]:
    return [_rgb(picture) for picture in denoiser.draw(rows, size, lambda: None)]


def _rgb(picture: DrawnImage) -> RGB:
    assert picture.rgb is not None, picture.error
    return picture.rgb


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sd", marks=pytest.mark.slow),
        pytest.param("sd3", marks=pytest.mark.slow),
        "flux",
    ],
)
def test_a_compiled_model_draws_the_same_to_the_eye_whoever_the_neighbours_are(
    kind: Kind,
) -> None:
    rows = _rows()
    plain = Denoiser(_pipe(kind))
    compiled = Denoiser(_pipe(kind), ON)
    drawn = _drawn(compiled, rows)
    assert compiled.compiled_pipeline.mode == "regional"
    assert compiled.compiled_pipeline.clock.count > 0
    apart = [
        np.abs(ours.astype(int) - theirs).max()
        for ours, theirs in zip(drawn, _drawn(plain, rows), strict=True)
    ]
    assert max(apart) <= 2
    assert np.array_equal(_drawn(compiled, rows[1:])[0], drawn[1])


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("sd", "euler", "ddim"),
        pytest.param("sdxl", "ddim", "euler", marks=pytest.mark.slow),
    ],
)
def test_a_shape_is_compiled_once_whatever_its_steps_guidance_and_sampler(
    kind: Kind, first: str, second: str
) -> None:
    """Samplers of integer and of fractional timesteps share the code too."""
    batches = [_rows(sampler=first), _rows(sampler=second), _rows(steps=4, guidance=5.0)]
    plain = Denoiser(_pipe(kind))
    denoiser = Denoiser(_pipe(kind), ON)
    drawn = _drawn(denoiser, batches[0])
    clock = denoiser.compiled_pipeline.clock
    compiled = (clock.count, clock.seconds)
    assert clock.seconds > 0

    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in batches[1:]:
            drawn += _drawn(denoiser, rows)

    assert (clock.count, clock.seconds) == compiled
    expected = [picture for rows in batches for picture in _drawn(plain, rows)]
    assert all(np.array_equal(*each) for each in zip(drawn, expected, strict=True))


@pytest.mark.parametrize(("kind", "networks"), [("ideogram4", 2), ("bria", 1)])
def test_each_network_that_runs_at_every_step_is_compiled(kind: str, networks: int) -> None:
    """Ideogram 4 has two, and diffusers names no blocks of Bria's."""
    pipe = plain.pipe(kind)
    assert Denoiser(pipe, ON).compiled_pipeline.mode == "regional"
    compiled = [blocks_of(network) for network in denoisers_of(pipe)]
    assert len(compiled) == networks
    assert all(blocks and all(map(compiled_call, blocks)) for blocks in compiled)


def _failing(_graph: object, _inputs: object) -> object:
    raise RuntimeError("the compiler\nfell over")


@pytest.mark.slow
def test_where_compiling_fails_images_are_drawn_plainly_and_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_module, "COMPILE_OPTIONS", {"backend": _failing})
    denoiser, rows = Denoiser(_one_block(), ON), _rows()
    drawn = _drawn(denoiser, rows) + _drawn(denoiser, _rows(width=32))
    plain = _drawn(Denoiser(_one_block()), rows)
    assert all(np.array_equal(*each) for each in zip(drawn, plain, strict=False))
    assert denoiser.compiled_pipeline.mode == "none"
    (said,) = [each.getMessage() for each in caplog.records if each.name == log.name]
    assert said.startswith("The model could not be compiled (")
    assert said.endswith("so it runs uncompiled, slower. Set speed.compile: off.")
    assert "\n" not in said


@pytest.mark.slow
def test_loras_of_any_weight_share_their_code() -> None:
    pipe = _one_block()
    files = {"style": LoraSettings(id=str(loras.saved_for(_one_block(), seed=1)))}
    layers = LoraLayers(
        pipe, files, load_lora_facts(ModelSettings(id="bundled:shapes", loras=files))
    )
    denoiser = Denoiser(pipe, ON, loras=layers)
    _drawn(denoiser, _rows(loras="style:0.8"))
    with torch.compiler.set_stance("fail_on_recompile"):
        drawn = [_drawn(denoiser, _rows(loras=f"style:{weight}")) for weight in (0.8, -0.3)]
    assert not np.array_equal(drawn[0][0], drawn[1][0])


@pytest.mark.parametrize("speed", [SpeedSettings(), SpeedSettings(compile="off")])
def test_a_cpu_runs_the_model_as_it_is_unless_told_otherwise(speed: SpeedSettings) -> None:
    denoiser = Denoiser(_one_block(), speed)
    _drawn(denoiser, _rows(1), 1)
    assert (denoiser.compiled_pipeline.mode, denoiser.compiled_pipeline.clock.count) == ("none", 0)


def test_the_folder_for_code_exists_before_pods_mount_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / "imagekiln"
    monkeypatch.setenv(PYTORCH_CACHE_VARIABLE, str(folder))
    create_code_folder()
    create_code_folder()
    assert folder.is_dir()
