"""The last steps of an image by another model: SDXL's base and refiner as an ensemble of experts.

Source: SDXL, https://arxiv.org/abs/2307.01952, appendix; diffusers' guide to the refiner.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import diffusers
import torch
from diffusers.utils import BaseOutput

from imagekiln.steps import model
from imagekiln.steps.conditioning import Conditioning, Inputs
from imagekiln.steps.families import family
from imagekiln.steps.pipeline import loaded
from imagekiln.steps.plan import Plan
from imagekiln.steps.quantize import to_fp8
from imagekiln.steps.rows import ImageRow

SHARED = ("text_encoder_2", "vae")
Component: TypeAlias = Any  # diffusers has no types
WRITTEN_BY = {"transformers_version"}
STEP_END = ("callback_on_step_end", "callback_on_step_end_tensor_inputs")


class Refiner:
    """A loaded refiner, which goes on where the model itself stops. `pipe` is its pipeline, which also decodes."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, start: float) -> None:
        """Take its pipeline, and the share of the noise that the model itself takes away."""
        self.pipe = pipe
        self._start = start
        self._conditioning = Conditioning(pipe, family(model.REFINED))  # texts are embedded as the model's are
        self._prediction = pipe.scheduler.config.prediction_type

    def draw(self, base: diffusers.DiffusionPipeline, batch: Sequence[ImageRow], inputs: Inputs) -> BaseOutput:
        """The output of both for the base's inputs: each image's noise goes on from its own generator."""
        begun = base(**inputs, output_type="latent", denoising_end=self._start).images
        told = self._conditioning
        # The base's noise levels, whatever scheduler the refiner came with: it must find the noise that it is told of.
        config = {**base.scheduler.config, "prediction_type": self._prediction}
        self.pipe.scheduler = type(base.scheduler).from_config(config)
        goes_on = {name: inputs[name] for name in ("generator", *STEP_END) if name in inputs}
        return self.pipe(
            **told.text(batch) | told.settings(batch[0]) | goes_on,
            image=begun,
            denoising_start=self._start,
            output_type=told.drawn_as,
        )


def load(plan: Plan, base: diffusers.DiffusionPipeline) -> Refiner | None:
    """The plan's refiner, where it has one. What it has in common with the base is in memory once.

    Raises what loading a model raises.
    """
    wanted, settings = model.refiner(plan.job.model), plan.job.model.refiner
    if wanted is None or settings is None:
        return None
    pipe = loaded(wanted, str(plan.model.refiner), torch.device("cpu"))
    if plan.job.speed.quantization == "fp8":
        to_fp8(pipe.unet)
    for name in SHARED:
        mine, its = getattr(base, name), getattr(pipe, name)
        if _same(mine, its):
            pipe.register_modules(**{name: mine})
    return Refiner(pipe.to(base.device), settings.start)


def _same(one: Component, other: Component) -> bool:
    if type(one) is not type(other) or _said(one) != _said(other):
        return False
    mine, its = one.state_dict(), other.state_dict()
    return mine.keys() == its.keys() and all(torch.equal(mine[name].cpu(), its[name]) for name in its)


def _said(module: Component) -> dict[str, object]:
    """A component's configuration, but for where it comes from and who wrote it."""
    config = module.config if isinstance(module.config, Mapping) else module.config.to_dict()
    return {name: value for name, value in config.items() if not name.startswith("_") and name not in WRITTEN_BY}
