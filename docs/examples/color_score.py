"""A score of one's own: how much of the image has the color that the prompt asks for?"""

import numpy as np
import numpy.typing as npt

from imagekiln.checks import ImageSpec

COLORS = {
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    "red": (220, 40, 40),
    "yellow": (245, 215, 45),
    "blue": (45, 85, 215),
}


def color(images: list[npt.NDArray[np.uint8]], specs: list[ImageSpec]) -> list[float]:
    """The share of pixels whose nearest color is the first one that the prompt names."""
    return [_share(image, spec.prompt) for image, spec in zip(images, specs, strict=True)]


def _share(image: npt.NDArray[np.uint8], prompt: str) -> float:
    wanted = next(word for word in prompt.split() if word in COLORS)
    distances = [np.abs(image.astype(int) - value).sum(axis=2) for value in COLORS.values()]
    nearest = np.argmin(distances, axis=0)
    return float(np.mean(nearest == [*COLORS].index(wanted)))
