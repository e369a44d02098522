"""What a check of your own gets and returns. It needs nothing else of Imagekiln, and no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """What was asked for. `seed` is the image's own; sizes are in pixels; `id` is the input's, where it has one.

    `loras` is text such as "detail:0.5,style:0.8". The pictures are the SHA-256 of their bytes.
    """

    image_id: str
    id: str | None
    image_index: int
    prompt: str
    negative_prompt: str
    seed: int
    width: int
    height: int
    steps: int
    guidance: float
    sampler: str
    loras: str | None = None
    strength: float | None = None
    source_image: str | None = None
    mask_image: str | None = None
    control_image: str | None = None
    reference_image: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an image is as it should be. The reason is kept where it is not."""

    ok: bool
    reason: str = ""
