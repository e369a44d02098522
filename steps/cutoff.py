"""Guidance that ends early: after a share of the steps, the negative prompt is no longer computed.

As diffusers' own callbacks do it (diffusers/callbacks.py), but for whole batches: those keep the last image only. It
goes by the number of the step alone, so no image depends on its neighbours.
"""

from dataclasses import dataclass

import diffusers
import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class CutOff:
    """Ends guidance after the share `until` of the steps, the first of which always has it.

    `halved` names the tensors of a pipeline that hold a negative half before the positive one until then.
    """

    until: float
    halved: tuple[str, ...]

    def after_step(self, pipe: diffusers.DiffusionPipeline, step: int, tensors: Tensors) -> Tensors:
        """What the pipeline is to go on with after the step of this number, counted from 0."""
        last = max(1, round(self.until * pipe.num_timesteps)) - 1
        if step != last or not pipe.do_classifier_free_guidance:
            return tensors
        pipe._guidance_scale = 0.0  # each call of the pipeline sets it anew
        return tensors | {name: tensors[name].chunk(2)[1] for name in self.halved}
