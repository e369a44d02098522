"""A picture that conditions images: whether a stranger's file is one that can be taken, and its pixels upright."""

import io
from typing import Literal, get_args

import numpy as np
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

from imagekiln.steps.job.job import JobLimits
from imagekiln.steps.runtime.concurrency import ByteBudget

INPUT_IMAGE_FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
)  # and no other decoder of Pillow's ever sees the bytes
ImageRejectionReason = Literal["place", "missing", "bytes", "format", "pixels", "damaged"]
IMAGE_REJECTION_REASONS: tuple[ImageRejectionReason, ...] = get_args(ImageRejectionReason)
DECODE_BUDGET_BYTES = 2**29  # bytes of decoded pixels at a time, however many threads there are
DECODE_BYTES_PER_PIXEL = (
    20  # RGBA as it is decoded, upright, over white, and the result, at their most
)
WHITE = (255, 255, 255, 255)


class RejectedImage(Exception):
    """A picture that cannot be taken. `fault` says why."""

    def __init__(self, fault: ImageRejectionReason) -> None:
        """Take the reason."""
        super().__init__(fault)
        self.reason: ImageRejectionReason = fault


class ImageInspector:
    """Judges files as `limits` has it. For several threads: they share the memory that decoding takes."""

    def __init__(self, limits: JobLimits) -> None:
        """Begin with all memory free."""
        self._limits = limits
        self._room = ByteBudget(DECODE_BUDGET_BYTES)

    def inspect(self, content: bytes) -> None:
        """Raise Unfit where a file is too large, of another format, or does not decode."""
        if len(content) > self._limits.picture_bytes:
            raise RejectedImage("bytes")
        try:
            with Pillow.open(io.BytesIO(content), formats=INPUT_IMAGE_FORMATS) as image:
                self._decode(image)
        except RejectedImage:
            raise
        except UnidentifiedImageError as error:
            raise RejectedImage("format") from error
        except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
            raise RejectedImage("pixels") from error
        except Exception as error:  # a stranger's file may make a decoder raise anything
            raise RejectedImage("damaged") from error

    def _decode(self, image: Pillow.Image) -> None:
        pixels = image.width * image.height
        if pixels > self._limits.picture_pixels:
            raise RejectedImage("pixels")
        with self._room.reserve(DECODE_BYTES_PER_PIXEL * pixels):
            to_upright_rgb(image)


def open_input_image(content: bytes) -> Pillow.Image:
    """The picture in a file that was inspected, RGB and upright. Raises what decoding raises."""
    with Pillow.open(io.BytesIO(content), formats=INPUT_IMAGE_FORMATS) as image:
        return to_upright_rgb(image)


def to_upright_rgb(image: Pillow.Image) -> Pillow.Image:
    """The picture as a viewer shows it, in RGB: turned as its EXIF says, and what is transparent over white."""
    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I"):  # 16 bits of grey, of which `convert` would keep the lowest
        turned = Pillow.fromarray((np.asarray(turned) >> 8).astype(np.uint8))
    if not turned.has_transparency_data:
        return turned.convert("RGB")
    ground = Pillow.new("RGBA", turned.size, WHITE)
    ground.alpha_composite(turned.convert("RGBA"))
    return ground.convert("RGB")


def resize_to_cover(image: Pillow.Image, width: int, height: int) -> Pillow.Image:
    """The picture scaled until it covers this size, and cut around its middle. One of that size stays as it is."""
    if image.size == (width, height):
        return image
    return ImageOps.fit(image, (width, height), Pillow.Resampling.LANCZOS)
