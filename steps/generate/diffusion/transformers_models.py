"""Models of transformers that passes run, and how such are loaded: safetensors, no remote code."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers

from imagekiln.steps.generate.diffusion.device import explained
from imagekiln.steps.generate.diffusion.loading import load_network
from imagekiln.steps.generate.diffusion.patches import Untyped
from imagekiln.steps.generate.diffusion.transfer import to_uint8
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.passes import CaptionPass, UpscalePass
from imagekiln.steps.models.transformers_models import fetch_planned_files

MAX_CAPTION_CHARS = 4000
# From images and the size of a batch.
Upscale = Callable[[Sequence[RGB], int], list[tuple[RGB, bool]]]
Describe = Callable[[Sequence[RGB], int], list[str]]
LOAD_OPTIONS: dict[str, Untyped] = {"trust_remote_code": False, "local_files_only": True}
# Of models that score or change images: their results are compared and stored.
MODEL_OPTIONS: dict[str, Untyped] = {"trust_remote_code": False, "dtype": torch.float32}


def explained_loading(setting: str, model_id: str, kind: str) -> AbstractContextManager[None]:
    """Explain errors of the libraries about a user's model."""
    subject = f"{setting}: {model_id}"
    return explained(subject, f"{subject} does not load as a {kind}", "Choose another model.")


@contextmanager
def _loading_pass(setting: str, settings: UpscalePass | CaptionPass, digest: str) -> Iterator[Path]:
    """Fetch the planned files of a pass; yield their folder to a block that loads them."""
    folder = fetch_planned_files(setting, settings, digest)
    with explained_loading(setting, settings.id, settings.kind):
        yield folder


def pad_batch(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """The batch filled up to `size` with its last entry: another size gives other bytes."""
    missing = size - len(tensor)
    padding = tensor[-1:].expand(missing, *tensor.shape[1:])
    return torch.cat([tensor, padding])


def _upscale(
    model: Untyped, device: torch.device, images: Sequence[RGB], size: int
) -> list[tuple[RGB, bool]]:
    """Enlarge each RGB uint8 (height, width, 3) in float32; return whether it is finite, too.

    They are computed in a batch that is padded to `size`.
    """
    tensor = torch.from_numpy(np.stack(images))
    padded = pad_batch(tensor, size)
    pixels = padded.to(device)
    with torch.inference_mode():
        scaled = pixels.permute(0, 3, 1, 2).float() / 255
        enlarged = model(pixel_values=scaled).reconstruction[: len(images)]
        finite = enlarged.isfinite().flatten(1).all(1).tolist()
        rgb = to_uint8(enlarged).cpu().numpy()
    return list(zip(rgb, finite, strict=True))


def load_upscaler(
    setting: str, settings: UpscalePass, digest: str, device: torch.device
) -> Upscale:
    """Load the upscaler of a pass."""
    with _loading_pass(setting, settings, digest) as folder:
        model_class: Untyped = transformers.AutoModelForImageToImage
        model = load_network(model_class, folder, **MODEL_OPTIONS).to(device).eval()
        return partial(_upscale, model, device)


def _describe(
    model: Untyped,
    processor: Untyped,
    tokenizer: Untyped,
    max_tokens: int,
    images: Sequence[RGB],
    size: int,
) -> list[str]:
    """Caption each RGB uint8 (height, width, 3), by the likeliest token each time.

    They are made in a batch that is padded to `size`.
    """
    pixels = processor(images=list(images), return_tensors="pt")["pixel_values"]
    pixels = pad_batch(pixels, size).to(model.device)
    with torch.inference_mode():
        tokens = model.generate(
            pixel_values=pixels,
            max_new_tokens=max_tokens,
            do_sample=False,
            num_beams=1,
        )
    texts = tokenizer.batch_decode(tokens[: len(images)], skip_special_tokens=True)
    return [clean_caption(text) for text in texts]


def clean_caption(text: str) -> str:
    """A caption as it is stored: on one line, and without what Parquet or readers refuse."""
    line = " ".join(text.replace("\0", " ").split())
    return line[:MAX_CAPTION_CHARS].encode(errors="replace").decode()


def load_captioner(
    setting: str, settings: CaptionPass, digest: str, device: torch.device
) -> Describe:
    """Load the captioner of a pass."""
    with _loading_pass(setting, settings, digest) as folder:
        processor = transformers.AutoImageProcessor.from_pretrained(folder, **LOAD_OPTIONS)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOAD_OPTIONS)
        model_class: Untyped = transformers.AutoModelForImageTextToText
        model = load_network(model_class, folder, **MODEL_OPTIONS).to(device).eval()
        return partial(
            _describe,
            model,
            processor,
            tokenizer,
            settings.max_tokens,
        )
