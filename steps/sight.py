"""What the image encoder of an IP-Adapter sees of a picture, and what it makes of that."""

import diffusers
import torch
from diffusers.loaders import FluxIPAdapterMixin, SD3IPAdapterMixin
from diffusers.models.embeddings import ImageProjection
from PIL import Image as Pillow

BLANK_IMAGE = Pillow.new("RGB", (8, 8))  # a picture for rows that have none, and to try an adapter with


def preprocess_reference(pipe: diffusers.DiffusionPipeline, picture: Pillow.Image) -> torch.Tensor:
    """The picture as the encoder takes it: scaled, cut and normalised, float32 (1, channels, height, width)."""
    pixels: torch.Tensor = pipe.feature_extractor([picture], return_tensors="pt").pixel_values
    return pixels


def encode_reference(pipe: diffusers.DiffusionPipeline, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a picture becomes, and what stands for none: each what one image of a batch is told."""
    with torch.no_grad():
        if isinstance(pipe, SD3IPAdapterMixin):
            return _with_zeros(pipe.encode_image(seen, pipe.device)[0])
        if isinstance(pipe, FluxIPAdapterMixin):
            return _with_zeros(pipe.encode_image(seen, pipe.device, 1))
        (layer,) = pipe.unet.encoder_hid_proj.image_projection_layers
        positive, negative = pipe.encode_image(seen, pipe.device, 1, not isinstance(layer, ImageProjection))
    return positive, negative


def check_ip_adapter(pipe: diffusers.DiffusionPipeline) -> None:
    """Raise what PyTorch raises where the adapter does not read what its image encoder makes of pictures."""
    positive, _ = encode_reference(pipe, preprocess_reference(pipe, BLANK_IMAGE))
    with torch.no_grad():
        if isinstance(pipe, SD3IPAdapterMixin):
            states, time = pipe.transformer.image_proj(positive[None], torch.zeros(1, device=pipe.device))
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
