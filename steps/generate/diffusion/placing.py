"""Keep a pipeline's weights on the device, or in the machine's memory until they are used."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import diffusers
import torch
from diffusers.hooks import apply_group_offloading

from imagekiln.steps.generate.diffusion.device import explained, free_memory
from imagekiln.steps.job.execution import Placement
from imagekiln.steps.models.families import family_of
from imagekiln.steps.models.placement import ComponentKind, component_kind

HOST = torch.device("cpu")
# Pipelines whose calls use parts of a text encoder, or its device, where no hook of diffusers sees
# it. Others that encode texts themselves move whole components.
UNPLACED: Mapping[Placement, frozenset[str]] = {
    "texts_first": frozenset(
        {
            *("GlmImagePipeline", "Ideogram4Pipeline"),
            *("LongCatImagePipeline", "LongCatImageEditPipeline"),
        }
    ),
    "offload": frozenset({"Ideogram4Pipeline"}),
}


class PlacedWeights:
    """The weights of a pipeline, in one of the placements.

    With `texts_first`, text encoders and denoiser take turns on the device. If the pipeline's call
    encodes the texts, it brings each component to the device itself.
    """

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        placement: Placement = "resident",
        device: torch.device | None = None,
    ) -> None:
        """Move the weights of a loaded pipeline. By default, all are on their device already.

        Raises BadInput if the pipeline does not support the placement.
        """
        self.placement = placement
        self.device: torch.device = device or pipe.device
        encodes_texts = family_of(type(pipe).__name__).positive_embeds
        self.takes_turns = placement == "texts_first" and bool(encodes_texts)
        self.pipe = pipe
        self._on_host: dict[int, torch.Tensor] = {}  # of parameters on the device, by their ids
        self._encoding = False
        if placement == "resident":
            if device is not None:
                pipe.to(device)
            return
        with explained(
            "speed.placement",
            f"speed.placement is {placement}, which {type(pipe).__name__} does not support",
            "Choose another placement, or a larger GPU.",
        ):
            if type(pipe).__name__ in UNPLACED[placement]:
                raise NotImplementedError("it uses parts of a text encoder by themselves")
            self._place()

    def _place(self) -> None:
        if self.takes_turns:
            self._bring("others")
            self._bring("denoiser")
        elif self.placement == "texts_first":
            self.pipe.enable_model_cpu_offload(device=self.device)
        else:
            self._bring("others")
            for kind in ("texts", "denoiser"):
                self._stream(kind)

    def _stream(self, kind: ComponentKind) -> None:
        """Copy each layer to the device before it computes."""
        for network in self._networks(kind):
            apply_group_offloading(
                network,
                onload_device=self.device,
                offload_device=HOST,
                offload_type="leaf_level",
                use_stream=self.device.type == "cuda",
            )

    @contextmanager
    def encoders_on_device(self) -> Iterator[None]:
        """Have the text encoders on the device in the block, and the denoiser after it."""
        if not self.takes_turns or self._encoding:
            yield
            return
        self._encoding = True
        try:
            self._put_away("denoiser")
            self._bring("texts")
            yield
        finally:
            self._encoding = False
            self._put_away("texts")
            self._bring("denoiser")

    def _bring(self, kind: ComponentKind) -> None:
        """Move networks to the device. Compiled code keeps its parameters, the same objects."""
        for network in self._networks(kind):
            for parameter in network.parameters():
                if type(parameter) is torch.nn.Parameter and parameter.device == HOST:
                    self._on_host[id(parameter)] = parameter.data
            network.to(self.device)

    def _put_away(self, kind: ComponentKind) -> None:
        """Move networks back into the memory that they came from, such as a mapped file."""
        for network in self._networks(kind):
            for parameter in network.parameters():
                if id(parameter) in self._on_host:
                    parameter.data = self._on_host.pop(id(parameter))
            network.to(HOST)
        free_memory()

    def _networks(self, kind: ComponentKind) -> Iterator[torch.nn.Module]:
        for name, component in self.pipe.components.items():
            if isinstance(component, torch.nn.Module) and component_kind(name) == kind:
                yield component
