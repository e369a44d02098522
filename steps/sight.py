"""What the image encoder of an IP-Adapter sees of a picture, and what it makes of that."""

import diffusers
import torch
from diffusers.models.embeddings import ImageProjection
from PIL import Image as Pillow

NOTHING = Pillow.new("RGB", (8, 8))  # a picture for rows that have none, and to try an adapter with


def look(pipe: diffusers.DiffusionPipeline, picture: Pillow.Image) -> torch.Tensor:
    """The picture as the encoder takes it: scaled, cut and normalised, float32 (1, channels, height, width)."""
    pixels: torch.Tensor = pipe.feature_extractor([picture], return_tensors="pt").pixel_values
    return pixels


def encoded(pipe: diffusers.DiffusionPipeline, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a picture becomes, and what stands for none, each with a leading axis of 1."""
    (layer,) = pipe.unet.encoder_hid_proj.image_projection_layers
    with torch.no_grad():
        positive, negative = pipe.encode_image(seen, pipe.device, 1, not isinstance(layer, ImageProjection))
    return positive, negative


def require_fitting(pipe: diffusers.DiffusionPipeline) -> None:
    """Raise what PyTorch raises where the adapter does not read what its image encoder makes of pictures."""
    (layer,) = pipe.unet.encoder_hid_proj.image_projection_layers
    positive, _ = encoded(pipe, look(pipe, NOTHING))
    with torch.no_grad():
        layer(positive)
