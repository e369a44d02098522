"""Place a pipeline's weights on the device, or in the machine's memory until they are used."""

from collections.abc import Iterator
from contextlib import contextmanager

import diffusers
import torch

from imagekiln.steps.generate.diffusion.device import explained, free_memory
from imagekiln.steps.job.execution import Placement
from imagekiln.steps.models.families import family_of
from imagekiln.steps.models.placement import ComponentKind, component_kind

HOST = torch.device("cpu")


def place_weights(
    pipe: diffusers.DiffusionPipeline, placement: Placement, device: torch.device
) -> None:
    """Move a loaded pipeline to where its weights are kept until it draws.

    With `texts_first`, the text encoders stay on the host, for `EncoderTurns`. The call of a
    pipeline whose texts are not encoded here brings each component to the device itself.
    """
    if placement == "resident":
        pipe.to(device)
        return
    with explained(
        "speed.placement",
        f"speed.placement is {placement}, which {type(pipe).__name__} does not support",
        "Choose another placement, or a larger GPU.",
    ):
        if placement == "offload":
            _stream_weights(pipe, device)
        elif family_of(type(pipe).__name__).positive_embeds:
            for kind in ("denoiser", "others"):
                move_components(pipe, kind, device)
        else:
            pipe.enable_model_cpu_offload(device=device)


def _stream_weights(pipe: diffusers.DiffusionPipeline, device: torch.device) -> None:
    """Keep layers on the host, and copy each to the device while the one before it computes."""
    move_components(pipe, "others", device)
    for kind in ("texts", "denoiser"):
        for network in networks_of(pipe, kind):
            diffusers.hooks.apply_group_offloading(
                network,
                onload_device=device,
                offload_device=HOST,
                offload_type="leaf_level",
                use_stream=device.type == "cuda",
            )


def networks_of(
    pipe: diffusers.DiffusionPipeline, kind: ComponentKind
) -> Iterator[torch.nn.Module]:
    """Yield the networks of a kind."""
    for name, component in pipe.components.items():
        if isinstance(component, torch.nn.Module) and component_kind(name) == kind:
            yield component


def move_components(
    pipe: diffusers.DiffusionPipeline, kind: ComponentKind, device: torch.device
) -> None:
    """Move the networks of a kind. Compiled code keeps its parameters, the same objects."""
    for network in networks_of(pipe, kind):
        network.to(device)


class EncoderTurns:
    """Brings a pipeline's text encoders to the device while its denoiser is on the host."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, device: torch.device) -> None:
        """Take a pipeline whose text encoders are on the host."""
        self._pipe = pipe
        self._device = device
        self._is_on_device = False

    @contextmanager
    def encoders_on_device(self) -> Iterator[None]:
        """Have the text encoders on the device in the block, and the denoiser after it."""
        if self._is_on_device:
            yield
            return
        self._swap("denoiser", "texts")
        self._is_on_device = True
        try:
            yield
        finally:
            self._is_on_device = False
            self._swap("texts", "denoiser")

    def _swap(self, leaving: ComponentKind, entering: ComponentKind) -> None:
        move_components(self._pipe, leaving, HOST)
        free_memory()
        move_components(self._pipe, entering, self._device)
