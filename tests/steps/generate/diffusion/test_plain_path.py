"""Pipelines that no table knows: each row gives the same pixels alone and in a batch."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from imagekiln.steps.generate.diffusion.batch_trial import find_dependence
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineInputs
from imagekiln.steps.generate.diffusion.placing import PlacedWeights
from imagekiln.steps.runs.image import ImageRow
from tests import models, plain, plain_unets
from tests.drawing import pixels_of
from tests.models import Untyped
from tests.pipeline_table import rows_for
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
    pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning"),
]
KINDS = sorted([*plain.MAKE, *plain_unets.MAKE])
# One for each way to be called: in a batch, one by one, by a schedule, with a decoder of RGBA.
QUICK = ("bria", "omnigen", "qwen-image-2.1")
EACH = [
    pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow, id=kind) for kind in KINDS
]


def _pipe(kind: str) -> Untyped:
    return (plain if kind in plain.MAKE else plain_unets).pipe(kind)


@pytest.mark.parametrize("kind", EACH)
def test_an_image_is_the_same_alone_and_in_a_batch(kind: str) -> None:
    pipe = _pipe(kind)
    rows = rows_for(pipe, plain.side_of(kind))
    together = pixels_of(Denoiser(pipe), rows, 4)
    alone = [pixels_of(Denoiser(pipe), [row], 1)[0] for row in rows]
    for one, other in zip(together, alone, strict=True):
        assert one.std() > 0
        # The kernels of a batch may round the last digit otherwise.
        assert np.abs(one.astype(int) - other.astype(int)).max() <= 1


@pytest.mark.parametrize("change", ["neighbors", "failure", "nothing"])
def test_rows_that_change_each_other_are_found(change: str) -> None:
    def generate(rows: Sequence[ImageRow]) -> torch.Tensor:
        pixels = torch.stack([torch.full((3, 8, 8), row.parameters.seed / 9) for row in rows])
        if len(rows) > 1 and change == "failure":
            raise TypeError("takes no list")
        longest = max(len(row.parameters.prompt) for row in rows)
        return pixels + longest / 100 if change == "neighbors" else pixels

    found = find_dependence(image_row(), torch.float32, generate)
    reasons = {"neighbors": "change each other's pixels by", "failure": "takes no list"}
    assert found is None if change == "nothing" else reasons[change] in str(found)


def test_what_a_pipeline_draws_from_torchs_own_generator_follows_from_the_row() -> None:
    told = PipelineInputs(PlacedWeights(plain.pipe("bria")))
    drawn = []
    for seed in (5, 4, 5):
        told.noise_kwargs([image_row(seed=seed)])
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[2] != drawn[1]
