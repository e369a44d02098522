"""An image-to-text model, which describes images."""

from collections.abc import Callable, Sequence

import torch
import transformers

from imagekiln.steps.generate.diffusion.patches import Untyped
from imagekiln.steps.generate.diffusion.transformers_models import (
    LOAD_OPTIONS,
    MODEL_OPTIONS,
    explained_loading,
    pad_batch,
)
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.passes import CaptionPass
from imagekiln.steps.models.hub_cache import loading_from_cache
from imagekiln.steps.models.transformers_files import fetch_planned_files

MAX_CAPTION_CHARS = 4000


class Captioner:
    """Describes batches of images of any sizes, by the likeliest token each time."""

    def __init__(
        self,
        model: Untyped,
        processor: Callable[..., Untyped],
        tokenizer: Untyped,
        max_tokens: int,
        device: torch.device,
    ) -> None:
        """Take a model on its device, and what belongs to it."""
        self._model = model
        self._processor = processor
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._device = device

    def __call__(self, images: Sequence[RGB], size: int) -> list[str]:
        """A caption of each RGB uint8 (height, width, 3), made in a batch padded to `size`.

        Raises what the model raises.
        """
        pixels = self._processor(images=list(images), return_tensors="pt")["pixel_values"]
        pixels = pad_batch(pixels, size).to(self._device)
        with torch.inference_mode():
            tokens = self._model.generate(
                pixel_values=pixels,
                max_new_tokens=self._max_tokens,
                do_sample=False,
                num_beams=1,
            )
        texts = self._tokenizer.batch_decode(tokens[: len(images)], skip_special_tokens=True)
        return [clean_caption(text) for text in texts]


def clean_caption(text: str) -> str:
    """A caption as it is stored: on one line, and without what Parquet or readers refuse."""
    line = " ".join(text.replace("\0", " ").split())
    return line[:MAX_CAPTION_CHARS].encode(errors="replace").decode()


def load_captioner(
    setting: str, settings: CaptionPass, digest: str, device: torch.device
) -> Captioner:
    """The captioner of a pass.

    Raises BadInput where its files do not load or are not those of the plan, Missing, TryAgain.
    """
    folder = fetch_planned_files(setting, settings, digest)
    with (
        loading_from_cache(settings.id, folder),
        explained_loading(setting, settings.id, settings.kind),
    ):
        processor = transformers.AutoImageProcessor.from_pretrained(folder, **LOAD_OPTIONS)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOAD_OPTIONS)
        model_class: Untyped = transformers.AutoModelForImageTextToText
        model = model_class.from_pretrained(folder, **MODEL_OPTIONS).to(device).eval()
        return Captioner(model, processor, tokenizer, settings.max_tokens, device)
