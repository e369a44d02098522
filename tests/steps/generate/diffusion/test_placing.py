"""Models larger than the card: the bytes on it, and the same pixels wherever weights are kept."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline import load_pipeline
from imagekiln.steps.generate.diffusion.placing import HOST, networks_of, place_weights
from imagekiln.steps.job.execution import Placement
from tests import card, families, models, plain
from tests.card import CARD, Card
from tests.drawing import bytes_of
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]
KINDS = ("sd", "sdxl", "klein", "qwen-image", "bria")
PROMPTS = ("a red circle", "two green triangles above the star", "a star", "a red circle")


def _rows(kind: str):
    side = families.SIDES.get(kind, models.SIDE)
    size = {"width": side, "height": side} if kind != "bria" else {"width": 64, "height": 64}
    return [image_row(prompt, place, **size) for place, prompt in enumerate(PROMPTS)]


def _pipe(kind: str):
    return plain.pipe(kind) if kind in plain.MAKE else families.pipe(kind)


def _denoiser(pipe, placement: Placement) -> Denoiser:
    place_weights(pipe, placement, CARD)
    return Denoiser(pipe, placement=placement)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes(kind: str) -> None:
    peaks = {}
    pixels = {}
    for placement in ("resident", "texts_first", "offload"):
        with Card() as measured:
            pipe = _pipe(kind)
            sizes = {k: sum(p.nbytes for n in networks_of(pipe, k) for p in n.parameters()) for k in ("texts","denoiser","others")}
            with closing(_denoiser(pipe, placement)) as denoiser:
                rows = _rows(kind)
                denoiser.set_part(rows)
                pixels[placement] = [*bytes_of(denoiser, rows[:2], 2), *bytes_of(denoiser, rows[2:], 2)]
        peaks[placement] = measured.peak
        print(kind, placement, measured.peak, sizes, denoiser.device)
    assert pixels["resident"] == pixels["texts_first"] == pixels["offload"]
