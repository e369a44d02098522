"""A check of one's own: is the background the color that the prompt asks for?"""

import re

import numpy as np
import numpy.typing as npt

from imagekiln.checks import ImageSpec, Verdict

BACKGROUND = re.compile(r"(\w+) background|on (\w+)$")
COLORS = {
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    "red": (220, 40, 40),
    "yellow": (245, 215, 45),
    "blue": (45, 85, 215),
    "purple": (130, 55, 175),
}


def check(image: npt.NDArray[np.uint8], spec: ImageSpec) -> Verdict | None:
    """Compare the corners, the median of which is the background, with the color's name."""
    match = BACKGROUND.search(spec.prompt)
    if match is None:
        return None  # no opinion
    expected = match[1] or match[2]
    corners = np.median(image[[0, 0, -1, -1], [0, -1, 0, -1]].astype(int), axis=0)
    nearest = min(COLORS, key=lambda name: np.abs(corners - COLORS[name]).sum())
    return Verdict(nearest == expected, f"the background is {nearest}, not {expected}")
