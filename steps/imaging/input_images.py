"""Check untrusted input images, and decode them upright."""

import io
from typing import Literal

import numpy as np
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

from imagekiln.steps.imaging.codecs import require_few_scans
from imagekiln.steps.runtime.concurrency import ByteBudget

# Pillow's other decoders never get the bytes.
INPUT_IMAGE_FORMATS = ("PNG", "JPEG", "WEBP")
ImageRejectionReason = Literal["place", "missing", "bytes", "format", "pixels", "damaged", "many"]
MAX_INPUT_BYTES = 32 * 2**20
MAX_INPUT_PIXELS = 8192 * 8192
# Of decoded pixels at a time, in all threads together.
DECODE_BUDGET_BYTES = 2**29
# At the peak: RGBA as decoded, rotated, composited on white, and the result.
DECODE_BYTES_PER_PIXEL = 20
WHITE = (255, 255, 255, 255)


class RejectedImage(Exception):
    """An input image that cannot be used."""

    def __init__(self, reason: ImageRejectionReason) -> None:
        """Take the reason."""
        super().__init__(reason)
        self.reason: ImageRejectionReason = reason


class ImageInspector:
    """Checks input images by decoding them. Calls from several threads share a memory budget."""

    def __init__(self) -> None:
        """Create the memory budget."""
        self._memory = ByteBudget(DECODE_BUDGET_BYTES)

    def inspect(self, content: bytes) -> tuple[int, int]:
        """Return the width and height of an image in pixels, upright.

        Raises RejectedImage if its file is too large, of another format, or damaged.
        """
        if len(content) > MAX_INPUT_BYTES:
            raise RejectedImage("bytes")
        try:
            with Pillow.open(io.BytesIO(content), formats=INPUT_IMAGE_FORMATS) as image:
                require_few_scans(content)
                return self._decode(image)
        except RejectedImage:
            raise
        except UnidentifiedImageError as error:
            raise RejectedImage("format") from error
        except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
            raise RejectedImage("pixels") from error
        except Exception as error:  # an untrusted file can make a decoder raise anything
            raise RejectedImage("damaged") from error

    def _decode(self, image: Pillow.Image) -> tuple[int, int]:
        pixels = image.width * image.height
        if pixels > MAX_INPUT_PIXELS:
            raise RejectedImage("pixels")
        with self._memory.reserve(DECODE_BYTES_PER_PIXEL * pixels):
            return to_upright_rgb(image).size


def open_input_image(content: bytes) -> Pillow.Image:
    """Decode an inspected file to upright RGB. Raises any error of decoding."""
    with Pillow.open(io.BytesIO(content), formats=INPUT_IMAGE_FORMATS) as image:
        return to_upright_rgb(image)


def to_upright_rgb(image: Pillow.Image) -> Pillow.Image:
    """Convert an image to RGB as a viewer shows it: rotated by its EXIF, on white."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16-bit gray, of which `convert` would keep the low bits
        upright = Pillow.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if not upright.has_transparency_data:
        return upright.convert("RGB")
    background = Pillow.new("RGBA", upright.size, WHITE)
    background.alpha_composite(upright.convert("RGBA"))
    return background.convert("RGB")


def resize_to_cover(image: Pillow.Image, width: int, height: int) -> Pillow.Image:
    """Scale the image to cover this size and crop its center; unchanged if it has this size."""
    if image.size == (width, height):
        return image
    return ImageOps.fit(image, (width, height), Pillow.Resampling.LANCZOS)
