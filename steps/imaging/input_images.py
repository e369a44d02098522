"""Images of the input: whether an untrusted file can be used, and its pixels upright."""

import io
from typing import Literal

import numpy as np
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

from imagekiln.steps.imaging.codecs import require_few_scans
from imagekiln.steps.runtime.concurrency import ByteBudget

# No other decoder of Pillow's ever gets the bytes.
INPUT_IMAGE_FORMATS = ("PNG", "JPEG", "WEBP")
ImageRejectionReason = Literal["place", "missing", "bytes", "format", "pixels", "damaged"]
MAX_INPUT_BYTES = 32 * 2**20
MAX_INPUT_PIXELS = 8192 * 8192
# Of decoded pixels at a time, whatever the number of threads.
DECODE_BUDGET_BYTES = 2**29
# At its peak: RGBA as decoded, upright, over white, and the result.
DECODE_BYTES_PER_PIXEL = 20
WHITE = (255, 255, 255, 255)


class RejectedImage(Exception):
    """An input image that cannot be used."""

    def __init__(self, reason: ImageRejectionReason) -> None:
        """Take the reason."""
        super().__init__(reason)
        self.reason: ImageRejectionReason = reason


class ImageInspector:
    """Judges files by their size and format. Its threads share memory to decode in."""

    def __init__(self) -> None:
        """Begin with all memory free."""
        self._memory = ByteBudget(DECODE_BUDGET_BYTES)

    def inspect(self, content: bytes) -> None:
        """Raise RejectedImage if a file is too large, of another format, or damaged."""
        if len(content) > MAX_INPUT_BYTES:
            raise RejectedImage("bytes")
        try:
            with Pillow.open(io.BytesIO(content), formats=INPUT_IMAGE_FORMATS) as image:
                require_few_scans(content)
                self._decode(image)
        except RejectedImage:
            raise
        except UnidentifiedImageError as error:
            raise RejectedImage("format") from error
        except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
            raise RejectedImage("pixels") from error
        except Exception as error:  # an untrusted file can make a decoder raise anything
            raise RejectedImage("damaged") from error

    def _decode(self, image: Pillow.Image) -> None:
        pixels = image.width * image.height
        if pixels > MAX_INPUT_PIXELS:
            raise RejectedImage("pixels")
        with self._memory.reserve(DECODE_BYTES_PER_PIXEL * pixels):
            to_upright_rgb(image)


def open_input_image(content: bytes) -> Pillow.Image:
    """The image in a file that was inspected, RGB and upright. Raises what decoding raises."""
    with Pillow.open(io.BytesIO(content), formats=INPUT_IMAGE_FORMATS) as image:
        return to_upright_rgb(image)


def to_upright_rgb(image: Pillow.Image) -> Pillow.Image:
    """The image as a viewer shows it, in RGB: rotated by its EXIF, and over white."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16 bits of gray, of which `convert` would keep the lowest
        upright = Pillow.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if not upright.has_transparency_data:
        return upright.convert("RGB")
    background = Pillow.new("RGBA", upright.size, WHITE)
    background.alpha_composite(upright.convert("RGBA"))
    return background.convert("RGB")


def resize_to_cover(image: Pillow.Image, width: int, height: int) -> Pillow.Image:
    """The image scaled to cover this size and cropped around its center; unchanged if it fits."""
    if image.size == (width, height):
        return image
    return ImageOps.fit(image, (width, height), Pillow.Resampling.LANCZOS)
