"""Compiling with real kernels, and tracing every family. Slow: a compiler runs for each shape."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from imagekiln.steps.generate.diffusion import compile as compilation
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.runs.image import ImageRow
from tests import families, models
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]

ON = SpeedSettings(compile="on")
UNCOMPILED = {"lumina2"}


def _rows(side: int, **settings: object) -> list[ImageRow]:
    return [
        image_row(f"a red circle {place}", place, width=side, height=side, **settings)
        for place in range(4)
    ]


def _draw(denoiser: Denoiser, rows: list[ImageRow], size: int = 4) -> models.Untyped:
    return np.stack([np.asarray(image.rgb) for image in denoiser.draw(rows, size, lambda: None)])


def _max_difference(one: models.Untyped, other: models.Untyped) -> int:
    return int(np.abs(one.astype(int) - other).max())


def test_the_bundled_model_compiled_draws_the_same_to_the_eye_and_its_code_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    rows = _rows(64)
    denoiser = Denoiser(models.pipe("shapes"), ON)
    drawn = _draw(denoiser, rows)
    assert denoiser.compiled_pipeline.mode == "regional"
    assert _max_difference(drawn, _draw(Denoiser(models.pipe("shapes")), rows)) <= 2
    for place in range(4):
        assert np.array_equal(_draw(denoiser, [rows[place]])[0], drawn[place])
    assert any(tmp_path.rglob("fxgraph/*"))


@pytest.mark.parametrize("kind", sorted(families.MAKE))
def test_every_family_is_traced_once_a_shape_and_draws_the_same_to_the_eye(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "COMPILE_OPTIONS", {"backend": "eager"})
    torch.compiler.reset()
    counters.clear()
    side = families.SIDES.get(kind, models.SIDE)
    denoiser = Denoiser(families.pipe(kind), ON)
    drawn = _draw(denoiser, _rows(side))
    assert (denoiser.compiled_pipeline.mode == "none") is (kind in UNCOMPILED)
    assert not counters["graph_break"]
    assert _max_difference(drawn, _draw(Denoiser(families.pipe(kind)), _rows(side))) <= 2
    with torch.compiler.set_stance("fail_on_recompile"):
        _draw(denoiser, _rows(side, steps=3, guidance=4.0))


@pytest.mark.parametrize("kind", sorted(families.MAKE))
def test_texts_of_all_lengths_share_their_code(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "COMPILE_OPTIONS", {"backend": "eager"})
    torch.compiler.reset()
    side = families.SIDES.get(kind, models.SIDE)
    denoiser = Denoiser(families.pipe(kind), ON)
    clock = denoiser.compiled_pipeline.clock
    counts = []
    for words in (1, 2, 3, 4, 6, 8):
        row = image_row(" ".join(["red"] * words), words, width=side, height=side)
        denoiser.draw([row], 1, lambda: None)
        counts.append(clock.count)
    assert counts == counts[:1] * len(counts)
