"""The id of an image as the documentation has it, worked out in Python for one image."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from imagekiln.steps.job.columns import OPTIONAL_IDENTITY_COLUMNS
from imagekiln.steps.models.loras import lora_key
from imagekiln.steps.runs.image import ImageParameters

ID_DIGITS = 32


def compute_image_id(
    key: str, image: ImageParameters, lora_digests: Mapping[str, str] | None = None
) -> str:
    """32 hexadecimal digits. LoRAs enter by their digests, whatever they are called."""
    if image.loras is not None and lora_digests is not None:
        image = replace(image, loras=lora_key(image.loras, lora_digests))
    texts = "|".join(
        f"{len(text.encode())}:{text}" for text in (image.prompt, image.negative_prompt)
    )
    settings = (
        f"{image.seed}|{image.width}x{image.height}|{image.steps}|{image.guidance}|{image.sampler}"
    )
    values = ((name, getattr(image, name)) for name in OPTIONAL_IDENTITY_COLUMNS)
    optional = "".join(
        f"|{name}:{len(str(value).encode())}:{value}" for name, value in values if value is not None
    )
    content = f"{key}|{texts}|{settings}{optional}"
    return hashlib.sha256(content.encode()).hexdigest()[:ID_DIGITS]
