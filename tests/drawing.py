"""What a denoiser draws, as pixels alone."""

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
    """The pixels of each row in a batch of this size; every one must be there."""
    found = []
    for picture in denoiser.draw(rows, size, check):
        assert picture.rgb is not None, picture.error
        found.append(picture.rgb)
    return found


def bytes_of(denoiser: Denoiser, rows: Sequence[ImageRow], size: int) -> list[bytes]:
    """The bytes of each row's pixels in a batch of this size; every one must be ok."""
    drawn = denoiser.draw(rows, size, lambda: None)
    assert [(each.status, each.error) for each in drawn] == [("ok", None)] * len(rows)
    return [each.rgb.tobytes() for each in drawn if each.rgb is not None]
