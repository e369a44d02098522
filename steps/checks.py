"""Input and result of user-defined checks. A check needs no other module of Imagekiln."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """Specification of a requested image. `id` is the id of the input row, if any.

    Sizes are in pixels. `guidance` is None if the model reads none. `loras` is a string such as
    "detail:0.5,style:0.8". Input images are given as the SHA-256 of their bytes.
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
    reference_images: str | None = None
    guidance_rescale: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check. The reason is stored if the image does not pass."""

    ok: bool
    reason: str = ""
