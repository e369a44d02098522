"""What a check of your own gets and returns. It needs nothing else of Imagekiln, and no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What was asked for. `seed` is the image's own; sizes are in pixels; `id` is the input's, where it has one."""

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


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an image is as it should be. The reason is kept where it is not."""

    ok: bool
    reason: str = ""
