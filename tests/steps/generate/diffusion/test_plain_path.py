"""Pipelines that no table knows: each row gives the same pixels alone and in a batch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from imagekiln.steps.generate.diffusion.batch_trial import rows_are_independent
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineInputs
from imagekiln.steps.generate.diffusion.placing import PlacedWeights
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.models.families import known_call_of
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests import models, plain, plain_unets, runs
from tests.drawing import pixels_of
from tests.models import Untyped
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
    pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning"),
]
KINDS = sorted([*plain.MAKE, *plain_unets.MAKE])
# Pixels: pipelines that generate one size or area. The others generate SIDE.
SIDES = {"hidream": 256, "kandinsky5": 1024}
SIDE = 64
# One for each way to be called: in a batch, one by one, by a schedule, with a decoder of RGBA.
QUICK = ("bria", "omnigen", "qwen-image-2.1")
PROMPTS = ("a red circle", "two green triangles above the star", "a star", "small text in it")
EACH = [
    pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow, id=kind) for kind in KINDS
]


def _pipe(kind: str) -> Untyped:
    return (plain if kind in plain.MAKE else plain_unets).pipe(kind)


def _rows(kind: str, pipe: Untyped) -> list[ImageRow]:
    side = SIDES.get(kind, SIDE)
    guidance = 3.0 if known_call_of(type(pipe).__name__).guidance_argument else None
    size = {"width": side, "height": side, "steps": 2}
    return [
        image_row(prompt, place, **size, guidance=guidance) for place, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("kind", EACH)
def test_an_image_is_the_same_alone_and_in_a_batch(kind: str) -> None:
    pipe = _pipe(kind)
    rows = _rows(kind, pipe)
    together = pixels_of(Denoiser(pipe), rows, 4)
    alone = [pixels_of(Denoiser(pipe), [row], 1)[0] for row in rows]
    for one, other in zip(together, alone, strict=True):
        assert one.std() > 0
        # The kernels of a batch may round the last digit otherwise.
        assert np.abs(one.astype(int) - other.astype(int)).max() <= 1


@pytest.mark.parametrize("change", ["neighbors", "failure", "nothing"])
def test_rows_that_change_each_other_are_found(change: str) -> None:
    def generate(rows: list[ImageRow]) -> torch.Tensor:
        pixels = torch.stack([torch.full((3, 8, 8), row.parameters.seed / 9) for row in rows])
        if len(rows) > 1 and change == "failure":
            raise TypeError("takes no list")
        longest = max(len(row.parameters.prompt) for row in rows)
        return pixels + longest / 100 if change == "neighbors" else pixels

    found = rows_are_independent(image_row(), torch.float32, generate)
    assert found == (change == "nothing")


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", sorted(plain.MAKE))
def test_a_whole_job_of_two_shapes_runs(kind: str, tmp_path: Path) -> None:
    side = SIDES.get(kind, SIDE)
    sizes = {"width": side, "height": side}, {"width": 2 * side, "height": side}
    rows = [{"prompt": prompt} | size for prompt in PROMPTS[:2] for size in sizes]
    if kind in SIDES:
        rows = rows[::2]
    job = runs.job(
        runs.write_prompts(tmp_path / "prompts.parquet", rows),
        str(tmp_path / "out"),
        model={"id": str(plain.folder(kind)), "dtype": "float32"},
        batch={"images": 2},
    )
    done = run(job, NoProgress(), Stop())
    assert done.summary.ok == len(rows)
    assert verify(done.uri).ok == len(rows)


def test_what_a_pipeline_draws_from_torchs_own_generator_follows_from_the_row() -> None:
    told = PipelineInputs(PlacedWeights(plain.pipe("bria")))
    drawn = []
    for seed in (5, 4, 5):
        told.noise_kwargs([image_row(seed=seed)])
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[2] != drawn[1]
