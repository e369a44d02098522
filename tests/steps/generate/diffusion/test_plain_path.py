"""Pipelines of no known family: the pixels of diffusers' own call, one image at a time."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineInputs
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests import models, plain, runs
from tests.drawing import pixels_of
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]
KINDS = sorted(plain.MAKE)
SIDE = 32  # pixels


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_images_are_those_of_diffusers_own_call_whatever_was_drawn_before(kind: str) -> None:
    pipe = plain.pipe(kind)
    size = {"width": SIDE, "height": SIDE}
    rows = [
        image_row("two green triangles", 1, **size),
        image_row("a red circle", 2, negative_prompt="text", **size),
    ]
    asked = size | {
        "prompt": "a red circle",
        "negative_prompt": "text",
        "guidance_scale": 3.0,
        "num_inference_steps": 2,
    }
    taken = inspect.signature(pipe.__call__).parameters
    generator = torch.Generator("cpu").manual_seed(2)
    theirs = pipe(
        generator=generator, **{name: value for name, value in asked.items() if name in taken}
    ).images[0]
    before, ours = pixels_of(Denoiser(pipe), rows, 2)
    assert np.array_equal(ours, np.asarray(theirs))
    assert ours.std() > 1
    assert not np.array_equal(ours, before)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_job_of_two_shapes_runs(kind: str, tmp_path: Path) -> None:
    sizes = {"width": SIDE, "height": SIDE}, {"width": 2 * SIDE, "height": SIDE}
    rows = [
        {"prompt": prompt} | size
        for prompt in ("a red circle", "two green triangles")
        for size in sizes
    ]
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
    told = PipelineInputs(plain.pipe("bria"))
    drawn = []
    for seed in (5, 4, 5):
        told.noise_kwargs([image_row(seed=seed)])
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[2] != drawn[1]
