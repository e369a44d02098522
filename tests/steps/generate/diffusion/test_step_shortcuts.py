"""Steps without the negative prompts, and steps that are extrapolated: which, and to the byte."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from diffusers import TaylorSeerCacheConfig
from diffusers.callbacks import SDXLCFGCutoffCallback

from imagekiln.steps.generate.diffusion import compile as compile_module
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.models.families import FAMILIES, family_of
from imagekiln.steps.models.pipeline_calls import known_call_of
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.runtime.signals import Stopped
from tests import families, models
from tests.drawing import bytes_of
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]

LIMITED = [
    *("aura-flow", "chroma", "cogview4", "klein", "lumina2", "pixart-alpha", "pixart-sigma"),
    *("qwen-image", "sana", "sd", "sd3", "sdxl"),
]
CACHED = ["chroma", "cogview4", "flux", "flux2", "hunyuan-image", "klein", "qwen-image"]
GUIDANCE = 4.0


def _speed(**settings: object) -> SpeedSettings:
    return SpeedSettings.model_validate(settings)


def _interval(start: float, end: float) -> SpeedSettings:
    return _speed(guidance_interval=[start, end])


def _rows(kind: str, count: int = 1, **settings: object) -> list[ImageRow]:
    side = families.SIDES.get(kind, models.SIDE)
    common = {"width": side, "height": side, "steps": 4, "guidance": GUIDANCE, **settings}
    return [
        image_row(f"a red circle {place}", place, **{"negative_prompt": "a star", **common})
        for place in range(count)
    ]


def _drawn(kind: str, speed: SpeedSettings | None, rows: Sequence[ImageRow]) -> list[bytes]:
    return bytes_of(Denoiser(families.pipe(kind), speed), rows, len(rows))


class Calls:
    """How many rows the denoiser of a pipeline ran at each call."""

    def __init__(self, pipe: models.Untyped) -> None:
        self.rows: list[int] = []
        network = denoiser_network(pipe)
        forward = network.forward

        def count(*args: models.Untyped, **kwargs: models.Untyped) -> models.Untyped:
            self.rows.append(len(args[0] if args else kwargs["hidden_states"]))
            return forward(*args, **kwargs)

        network.forward = count


@pytest.mark.parametrize("kind", LIMITED)
def test_guidance_ends_at_its_share_of_the_steps_and_saves_the_negative_prompts(kind: str) -> None:
    pipe = families.pipe(kind)
    calls = Calls(pipe)
    bytes_of(Denoiser(pipe, _interval(0.25, 0.75)), _rows(kind), 1)
    joined = [1, 2, 2, 1]
    separate = [1, 1, 1, 1, 1, 1]
    assert calls.rows in (joined, separate)


@pytest.mark.parametrize("kind", LIMITED)
def test_steps_without_guidance_are_those_of_an_image_without_guidance(kind: str) -> None:
    call = known_call_of(type(families.pipe(kind)).__name__)
    guided = _drawn(kind, None, _rows(kind))
    unguided = _drawn(kind, None, _rows(kind, guidance=call.guided_above))
    no_step, every_step, some_steps = (
        _drawn(kind, _interval(*each), _rows(kind))
        for each in ((0.9, 0.95), (0, 0.95), (0.25, 0.75))
    )
    assert no_step == unguided
    assert every_step == guided
    assert len({*guided, *unguided, *some_steps}) == 3
