"""What images are drawn from beside their texts: the pictures of a run, and the networks that read them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import diffusers
import torch
import transformers
from diffusers.loaders import FluxIPAdapterMixin, SD3IPAdapterMixin
from diffusers.models.embeddings import ImageProjection
from PIL import Image as Pillow

from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.generate.diffusion.device import is_device_lost, is_out_of_memory
from imagekiln.steps.generate.diffusion.image_prefetch import ImagePrefetcher
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.models.adapters import (
    controlnet_mismatch,
    fetch_planned_adapter,
    require_ip_adapter_files,
)
from imagekiln.steps.models.families import ImageEncoderClass, variants_of
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage.failures import error_reason
from imagekiln.steps.storage.store import Store

BLANK_IMAGE = Pillow.new(
    "RGB", (8, 8)
)  # a picture for rows that have none, and to try an adapter with


def preprocess_reference(pipe: diffusers.DiffusionPipeline, picture: Pillow.Image) -> torch.Tensor:
    """The picture as the encoder takes it: scaled, cut and normalised, float32 (1, channels, height, width)."""
    pixels: torch.Tensor = pipe.feature_extractor([picture], return_tensors="pt").pixel_values
    return pixels


def encode_reference(
    pipe: diffusers.DiffusionPipeline, seen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a picture becomes, and what stands for none: each what one image of a batch is told."""
    with torch.no_grad():
        if isinstance(pipe, SD3IPAdapterMixin):
            return _with_zeros(pipe.encode_image(seen, pipe.device)[0])
        if isinstance(pipe, FluxIPAdapterMixin):
            return _with_zeros(pipe.encode_image(seen, pipe.device, 1))
        (layer,) = pipe.unet.encoder_hid_proj.image_projection_layers
        positive, negative = pipe.encode_image(
            seen, pipe.device, 1, not isinstance(layer, ImageProjection)
        )
    return positive, negative


def check_ip_adapter(pipe: diffusers.DiffusionPipeline) -> None:
    """Raise what PyTorch raises where the adapter does not read what its image encoder makes of pictures."""
    positive, _ = encode_reference(pipe, preprocess_reference(pipe, BLANK_IMAGE))
    with torch.no_grad():
        if isinstance(pipe, SD3IPAdapterMixin):
            states, time = pipe.transformer.image_proj(
                positive[None], torch.zeros(1, device=pipe.device)
            )
            reader = next(iter(pipe.transformer.attn_processors.values()))
            reader.to_k_ip(reader.norm_ip(states, temb=time))
        elif isinstance(pipe, FluxIPAdapterMixin):
            (states,) = pipe.transformer.encoder_hid_proj([positive[None]])
            next(iter(pipe.transformer.attn_processors.values())).to_k_ip[0](states)
        else:
            (layer,) = pipe.unet.encoder_hid_proj.image_projection_layers
            layer(positive)


def _with_zeros(positive: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A picture, and zeros that take no memory."""
    return positive, positive.new_zeros(()).expand_as(positive)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """The pictures; a ControlNet and its scale, where the job has one; the scale of its IP-Adapter, else None."""

    image_prefetcher: ImagePrefetcher
    controlnet: diffusers.ModelMixin | None = None
    controlnet_scale: float = 1.0
    ip_adapter_scale: float | None = None


def load_adapters(pipe: diffusers.DiffusionPipeline, plan: Plan, store: Store) -> LoadedAdapters:
    """The conditions of a run in `store`. An IP-Adapter becomes a part of `pipe`.

    Raises BadInput where a network does not fit or is not as planned, Missing, TryAgain.
    """
    control, reference = plan.job.model.controlnet, plan.job.model.ip_adapter
    found = LoadedAdapters(
        ImagePrefetcher(store, partial(preprocess_reference, pipe) if reference else None)
    )
    if control is not None:
        network = _load_or_explain(
            "model.controlnet",
            lambda: load_controlnet(pipe, control, plan.adapters["control_image"]),
        )
        found = replace(found, controlnet=network, controlnet_scale=control.scale)
    if reference is not None:
        _load_or_explain(
            "model.ip_adapter",
            lambda: load_ip_adapter(pipe, reference, plan.adapters["reference_image"]),
        )
        found = replace(found, ip_adapter_scale=reference.scale)
    return found


def load_controlnet(
    pipe: diffusers.DiffusionPipeline, wanted: ControlNetSettings, key: str
) -> diffusers.ModelMixin:
    """The ControlNet with this key, on the pipeline's device. Raises ValueError where it does not fit, and others."""
    folder = fetch_planned_adapter(wanted, key)
    kind = variants_of(type(pipe).__name__).controlnet
    if kind is None:
        raise ValueError(f"{type(pipe).__name__} takes none")
    network = getattr(diffusers, kind).from_pretrained(
        folder, torch_dtype=pipe.dtype, use_safetensors=True, local_files_only=True
    )
    if told := controlnet_mismatch(kind, network.config, denoiser_network(pipe).config):
        raise ValueError(f"it {told}")
    return network.to(pipe.device).eval()


def load_ip_adapter(pipe: diffusers.DiffusionPipeline, wanted: IpAdapterSettings, key: str) -> None:
    """Make the IP-Adapter with this key a part of the pipeline. Raises what loading raises."""
    folder, kind = (
        fetch_planned_adapter(wanted, key),
        variants_of(type(pipe).__name__).ip_adapter_encoder,
    )
    if kind is None:
        raise ValueError(f"{type(pipe).__name__} takes none")
    require_ip_adapter_files(folder, wanted, kind, denoiser_network(pipe).config)
    _load_image_encoder(pipe, folder / wanted.image_encoder, kind)
    pipe.load_ip_adapter(
        str(folder),
        subfolder=wanted.subfolder,
        weight_name=wanted.weight_name,
        local_files_only=True,
    )
    if lacking := [
        name for name, each in denoiser_network(pipe).named_parameters() if each.is_meta
    ]:
        raise ValueError(f"it has no {lacking[0]}")
    denoiser_network(pipe).eval()
    check_ip_adapter(pipe)


def _load_image_encoder(
    pipe: diffusers.DiffusionPipeline, folder: Path, kind: ImageEncoderClass
) -> None:
    """Load it by ourselves: the pipeline would take pickles too, and what a file lacks would be drawn at random."""
    encoder, told = getattr(transformers, kind).from_pretrained(
        folder,
        dtype=pipe.dtype,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
    )
    if told["missing_keys"]:
        raise ValueError(f"its image encoder has no {min(told['missing_keys'])}")
    pipe.register_modules(image_encoder=encoder.to(pipe.device).eval())
    if kind == "SiglipVisionModel":  # to CLIP's pictures, diffusers cuts them itself
        cut = transformers.SiglipImageProcessor.from_pretrained(folder, local_files_only=True)
        pipe.register_modules(feature_extractor=cut)


def _load_or_explain(setting: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except KilnError:
        raise
    except Exception as error:  # whatever a stranger's folder makes the libraries raise
        if is_out_of_memory(error) or is_device_lost(error):
            raise TryAgain(
                f"{setting}: the device has no room for it ({error_reason(error)}). Run the shard again."
            ) from error
        said = f"it has no {error}" if isinstance(error, KeyError) else error_reason(error)
        raise BadInput(f"{setting}: does not fit the model ({said}). Name another.") from error
