"""What a denoiser draws, as pixels alone."""

from collections.abc import Callable, Sequence

from imagekiln.steps.codecs import RGB
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.rows import ImageRow


def pixels_of(
    denoiser: Denoiser, rows: Sequence[ImageRow], size: int, check: Callable[[], None] = lambda: None
) -> list[RGB]:
    """The pixels of each row in a batch of this size; every one must be there."""
    found = []
    for picture in denoiser.draw(rows, size, check):
        assert picture.rgb is not None, picture.error
        found.append(picture.rgb)
    return found
