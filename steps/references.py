"""Pictures that an IP-Adapter reads: each as the image encoder sees it, once, and each row by its own.

diffusers' calls take one such picture for a whole batch. What they make of it is a tensor with a row for each image,
so that is what they are given.
"""

from collections.abc import Sequence

import diffusers
import torch
from diffusers.models.embeddings import ImageProjection
from PIL import Image as Pillow

from imagekiln.steps.conditioning import Inputs
from imagekiln.steps.conditions import Conditions
from imagekiln.steps.inputs import Wanted, wanted
from imagekiln.steps.recent import Recent
from imagekiln.steps.rows import ImageRow

REMEMBERED = 256
COLUMN = "reference_image"


class References:
    """The IP-Adapter of a pipeline and of its siblings."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, conditions: Conditions) -> None:
        """Take a pipeline that an adapter is a part of."""
        self._pipe = pipe
        self._conditions = conditions
        self._known = Recent(self._read, REMEMBERED)
        (layer,) = pipe.unet.encoder_hid_proj.image_projection_layers
        self._hidden = not isinstance(layer, ImageProjection)
        self._nothing = self._encoded(Pillow.new("RGB", (8, 8)))
        self.join(pipe)

    def join(self, pipe: diffusers.DiffusionPipeline) -> None:
        """Have a pipeline take embeddings of a whole batch as they are."""
        pipe.prepare_ip_adapter_image_embeds = _as_given

    def told(self, rows: Sequence[ImageRow]) -> Inputs:
        """What the pipeline is told of rows that all have a reference, or that have none: then no layer reads it."""
        there = rows[0].pixels.reference_image is not None
        scale = self._conditions.reference_scale if there else 0.0
        self._pipe.set_ip_adapter_scale(scale)
        each = [self._known(wanted(row, COLUMN)) if there else self._nothing for row in rows]
        positive, negative = (torch.stack(tensors) for tensors in zip(*each, strict=True))
        return {"ip_adapter_image_embeds": [negative, positive]}

    def _read(self, picture: Wanted) -> tuple[torch.Tensor, torch.Tensor]:
        return self._encoded(self._conditions.inputs.ready(picture))

    def _encoded(self, picture: Pillow.Image) -> tuple[torch.Tensor, torch.Tensor]:
        """The picture, and what stands for none, each with a leading axis of 1."""
        with torch.no_grad():
            positive, negative = self._pipe.encode_image([picture], self._pipe.device, 1, self._hidden)
        return positive, negative


def _as_given(
    _picture: None, embeds: list[torch.Tensor], _device: torch.device, _count: int, guided: bool
) -> list[torch.Tensor]:
    negative, positive = embeds
    return [torch.cat([negative, positive]) if guided else positive]
