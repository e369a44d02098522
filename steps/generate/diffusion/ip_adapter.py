"""Pictures that an IP-Adapter reads: each as the image encoder sees it, once, and each row by its own.

diffusers' calls take one such picture for a whole batch. What they make of it is a tensor with a row for each image,
so that is what they are given.
"""

from collections.abc import Sequence

import diffusers
import torch
from diffusers.loaders import FluxIPAdapterMixin, SD3IPAdapterMixin

from imagekiln.steps.generate.diffusion.adapters import (
    BLANK_IMAGE,
    LoadedAdapters,
    encode_reference,
    preprocess_reference,
)
from imagekiln.steps.generate.diffusion.image_prefetch import ImageRequest, image_request
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineKwargs
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.runtime.concurrency import SingleFlightCache

MAX_CACHED_REFERENCES = 256
MAX_CACHE_BYTES = (
    256 << 20
)  # of the device's memory: a picture takes 2 KB for FLUX, 2 MB for SD 3.5
REFERENCE_COLUMN = "reference_image"


class ReferenceEmbeddings:
    """The IP-Adapter of a pipeline and of its siblings."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, conditions: LoadedAdapters) -> None:
        """Take a pipeline that an adapter is a part of."""
        self._pipe = pipe
        self._conditions = conditions
        self._nothing = encode_reference(pipe, preprocess_reference(pipe, BLANK_IMAGE))
        size = sum(each.untyped_storage().nbytes() for each in self._nothing)
        self._known = SingleFlightCache(
            self._encode, max(1, min(MAX_CACHED_REFERENCES, MAX_CACHE_BYTES // size))
        )
        self.attach(pipe)

    def attach(self, pipe: diffusers.DiffusionPipeline) -> None:
        """Have a pipeline take embeddings of a whole batch as they are."""
        pipe.prepare_ip_adapter_image_embeds = (
            _embeds_as_tensor if isinstance(pipe, SD3IPAdapterMixin) else _embeds_as_list
        )

    def pipeline_kwargs(self, rows: Sequence[ImageRow]) -> PipelineKwargs:
        """What the pipeline is told of rows that all have a reference, or that have none: then no layer reads it."""
        there = rows[0].parameters.reference_image is not None
        scale = self._conditions.ip_adapter_scale if there else 0.0
        self._pipe.set_ip_adapter_scale(scale)
        each = [
            self._known(image_request(row, REFERENCE_COLUMN)) if there else self._nothing
            for row in rows
        ]
        positive, negative = (torch.stack(tensors) for tensors in zip(*each, strict=True))
        told: PipelineKwargs = {"ip_adapter_image_embeds": [negative, positive]}
        if isinstance(
            self._pipe, FluxIPAdapterMixin
        ):  # without one, it would encode a black picture for each batch
            told["negative_ip_adapter_image_embeds"] = [negative, negative]
        return told

    def _encode(self, picture: ImageRequest) -> tuple[torch.Tensor, torch.Tensor]:
        return encode_reference(
            self._pipe, self._conditions.image_prefetcher.get_preprocessed(picture)
        )


def _embeds_as_list(
    picture: None,
    embeds: list[torch.Tensor],
    device: torch.device,
    count: int,
    guided: bool = False,
) -> list[torch.Tensor]:
    return [_embeds_as_tensor(picture, embeds, device, count, guided)]


def _embeds_as_tensor(
    _picture: None, embeds: list[torch.Tensor], _device: torch.device, _count: int, guided: bool
) -> torch.Tensor:
    negative, positive = embeds
    return torch.cat([negative, positive]) if guided else positive
