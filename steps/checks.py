"""Input and result of your own check. It needs nothing else of Imagekiln, and no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """The requested image. `id` is the input's, if it has one; `seed` is the image's own.

    Sizes are in pixels. `guidance` is None if the model reads none. `loras` is text such as
    "detail:0.5,style:0.8". Each input image is the SHA-256 of its bytes.
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
    guidance: float | None
    sampler: str
    loras: str | None = None
    strength: float | None = None
    source_image: str | None = None
    mask_image: str | None = None
    control_image: str | None = None
    reference_image: str | None = None
    guidance_rescale: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check. The reason is stored if the image does not pass."""

    ok: bool
    reason: str = ""
