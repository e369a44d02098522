"""Pictures that an IP-Adapter reads: each as the image encoder sees it, once, and each row by its own.

diffusers' calls take one such picture for a whole batch. What they make of it is a tensor with a row for each image,
so that is what they are given.
"""

from collections.abc import Sequence

import diffusers
import torch
from diffusers.loaders import FluxIPAdapterMixin, SD3IPAdapterMixin

from imagekiln.steps.conditioning import Inputs
from imagekiln.steps.conditions import Conditions
from imagekiln.steps.inputs import Wanted, wanted
from imagekiln.steps.recent import Recent
from imagekiln.steps.rows import ImageRow
from imagekiln.steps.sight import NOTHING, encoded, look

REMEMBERED = 256
REMEMBERED_BYTES = 256 << 20  # of the device's memory: a picture takes 2 KB for FLUX, 2 MB for SD 3.5
COLUMN = "reference_image"


class References:
    """The IP-Adapter of a pipeline and of its siblings."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, conditions: Conditions) -> None:
        """Take a pipeline that an adapter is a part of."""
        self._pipe = pipe
        self._conditions = conditions
        self._nothing = encoded(pipe, look(pipe, NOTHING))
        size = sum(each.untyped_storage().nbytes() for each in self._nothing)
        self._known = Recent(self._read, max(1, min(REMEMBERED, REMEMBERED_BYTES // size)))
        self.join(pipe)

    def join(self, pipe: diffusers.DiffusionPipeline) -> None:
        """Have a pipeline take embeddings of a whole batch as they are."""
        pipe.prepare_ip_adapter_image_embeds = _in_one if isinstance(pipe, SD3IPAdapterMixin) else _listed

    def told(self, rows: Sequence[ImageRow]) -> Inputs:
        """What the pipeline is told of rows that all have a reference, or that have none: then no layer reads it."""
        there = rows[0].pixels.reference_image is not None
        scale = self._conditions.reference_scale if there else 0.0
        self._pipe.set_ip_adapter_scale(scale)
        each = [self._known(wanted(row, COLUMN)) if there else self._nothing for row in rows]
        positive, negative = (torch.stack(tensors) for tensors in zip(*each, strict=True))
        told: Inputs = {"ip_adapter_image_embeds": [negative, positive]}
        if isinstance(self._pipe, FluxIPAdapterMixin):  # without one, it would encode a black picture for each batch
            told["negative_ip_adapter_image_embeds"] = [negative, negative]
        return told

    def _read(self, picture: Wanted) -> tuple[torch.Tensor, torch.Tensor]:
        return encoded(self._pipe, self._conditions.inputs.seen(picture))


def _listed(
    picture: None, embeds: list[torch.Tensor], device: torch.device, count: int, guided: bool = False
) -> list[torch.Tensor]:
    return [_in_one(picture, embeds, device, count, guided)]


def _in_one(
    _picture: None, embeds: list[torch.Tensor], _device: torch.device, _count: int, guided: bool
) -> torch.Tensor:
    negative, positive = embeds
    return torch.cat([negative, positive]) if guided else positive
