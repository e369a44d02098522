"""The pixels that a denoiser draws."""

from collections.abc import Callable, Sequence

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.runs.image import ImageRow


def pixels_of(
    denoiser: Denoiser,
    rows: Sequence[ImageRow],
    size: int,
    check: Callable[[], None] = lambda: None,
) -> list[RGB]:
    """The pixels of each row in a batch of this size. Every image must have pixels."""
    pixels = []
    for picture in denoiser.draw(rows, size, check):
        assert picture.rgb is not None, picture.error
        pixels.append(picture.rgb)
    return pixels


def bytes_of(denoiser: Denoiser, rows: Sequence[ImageRow], size: int) -> list[bytes]:
    """The bytes of each row's pixels in a batch of this size. Every image must be ok."""
    drawn = denoiser.draw(rows, size, lambda: None)
    assert [(image.status, image.error) for image in drawn] == [("ok", None)] * len(rows)
    return [image.rgb.tobytes() for image in drawn if image.rgb is not None]
