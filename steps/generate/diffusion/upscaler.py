"""A super-resolution model, which enlarges images by its own factor."""

from collections.abc import Sequence

import numpy as np
import torch
import transformers

from imagekiln.steps.generate.diffusion.patches import Untyped
from imagekiln.steps.generate.diffusion.transfer import to_uint8
from imagekiln.steps.generate.diffusion.transformers_models import (
    MODEL_OPTIONS,
    explained_loading,
    pad_batch,
)
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.passes import UpscalePass
from imagekiln.steps.models.hub_cache import loading_from_cache
from imagekiln.steps.models.transformers_files import fetch_planned_files


class Upscaler:
    """Enlarges batches of images of one size, in float32."""

    def __init__(self, model: Untyped, device: torch.device) -> None:
        """Take a Swin2SR model on its device."""
        self._model = model
        self._device = device

    def __call__(self, images: Sequence[RGB], size: int) -> list[tuple[RGB, bool]]:
        """Each RGB uint8 (height, width, 3) enlarged, and whether its numbers were finite.

        They are computed in a batch that is padded to `size`. Raises what the model raises.
        """
        pixels = pad_batch(torch.from_numpy(np.stack(images)), size).to(self._device)
        with torch.inference_mode():
            scaled = pixels.permute(0, 3, 1, 2).float() / 255
            enlarged = self._model(pixel_values=scaled).reconstruction[: len(images)]
            finite = enlarged.isfinite().flatten(1).all(1).tolist()
            rgb = to_uint8(enlarged).cpu().numpy()
        return list(zip(rgb, finite, strict=True))


def load_upscaler(
    setting: str, settings: UpscalePass, digest: str, device: torch.device
) -> Upscaler:
    """The upscaler of a pass.

    Raises BadInput where its files do not load or are not those of the plan, Missing, TryAgain.
    """
    folder = fetch_planned_files(setting, settings, digest)
    with (
        loading_from_cache(settings.id, folder),
        explained_loading(setting, settings.id, settings.kind),
    ):
        model_class: Untyped = transformers.AutoModelForImageToImage
        model = model_class.from_pretrained(folder, **MODEL_OPTIONS).to(device).eval()
        return Upscaler(model, device)
