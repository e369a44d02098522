"""Encode and decode image files. The same pixels and metadata give the same bytes."""

import hashlib
import io
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow
from PIL.PngImagePlugin import PngInfo

from imagekiln.steps.imaging.metadata import exif_user_comment
from imagekiln.steps.job.output import Encoding, Jpeg, Png, Webp

RGB = npt.NDArray[np.uint8]
PARAMETERS_KEYWORD = "parameters"
XMP_KEYWORD = "XML:com.adobe.xmp"
PILLOW_SUBSAMPLING = {444: 0, 422: 1, 420: 2}
PNG_LEVEL = 1  # zlib's: fast
LOSSLESS_WEBP_EFFORT = 75
WEBP_METHOD = 4
THUMBNAIL_QUALITY = 85
STORED_FORMATS = ("PNG", "JPEG", "WEBP")
MAX_DECODED_PIXELS = 4096 * 4096
JPEG_MAGIC = b"\xff\xd8"
JPEG_SCAN_MARKER = b"\xff\xda"
MAX_JPEG_SCANS = 500  # including embedded thumbnails; encoders write about ten


@dataclass(frozen=True, slots=True)
class EmbeddedMetadata:
    """Metadata of an image file: the text `parameters`, and an XMP packet."""

    parameters: str | None = None
    xmp: bytes | None = None


NO_METADATA = EmbeddedMetadata()


def encode_image(rgb: RGB, encoding: Encoding, metadata: EmbeddedMetadata = NO_METADATA) -> bytes:
    """Encode RGB uint8 (height, width, 3) to a file of that encoding."""
    image = Pillow.fromarray(rgb)
    file = io.BytesIO()
    match encoding:
        case Png():
            image.save(file, "PNG", compress_level=PNG_LEVEL, pnginfo=_png_info(metadata))
        case Jpeg():
            image.save(
                file,
                "JPEG",
                quality=encoding.quality,
                subsampling=PILLOW_SUBSAMPLING[encoding.subsampling],
                **_exif_and_xmp(metadata),
            )
        case Webp():
            image.save(
                file,
                "WEBP",
                quality=LOSSLESS_WEBP_EFFORT if encoding.lossless else encoding.quality,
                lossless=encoding.lossless,
                method=WEBP_METHOD,
                **_exif_and_xmp(metadata),
            )
    return file.getvalue()


def decode_image(
    content: bytes, size: tuple[int, int] | None = None, most: int = MAX_DECODED_PIXELS
) -> RGB:
    """Decode a stored image of the width and height `size`, or else of at most `most` pixels.

    Raises OSError or ValueError if it is no such image, before allocating memory for pixels.
    """
    try:
        with Pillow.open(io.BytesIO(content), formats=STORED_FORMATS) as image:
            _require_size(image, size, most)
            require_few_scans(content)
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, MemoryError):
        raise
    except Exception as error:  # an untrusted file can make a decoder raise anything
        raise ValueError(str(error)) from error


def require_few_scans(content: bytes) -> None:
    """Raise ValueError if a JPEG has too many scans.

    A scan that changes nothing is about ten bytes long, but takes time for each pixel.
    """
    if content.startswith(JPEG_MAGIC) and content.count(JPEG_SCAN_MARKER) > MAX_JPEG_SCANS:
        raise ValueError(f"it has more than {MAX_JPEG_SCANS} scans")


def encode_thumbnail(rgb: RGB, side: int) -> bytes:
    """Encode the image as a JPEG of at most `side` pixels in width and height."""
    image = Pillow.fromarray(rgb)
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=THUMBNAIL_QUALITY)
    return file.getvalue()


def hash_pixels(rgb: RGB) -> str:
    """Compute the SHA-256 of the pixels, row by row, which does not depend on the encoding."""
    return hashlib.sha256(np.ascontiguousarray(rgb).tobytes()).hexdigest()


def _exif_and_xmp(metadata: EmbeddedMetadata) -> dict[str, bytes]:
    options = {}
    if metadata.parameters is not None:
        options["exif"] = exif_user_comment(metadata.parameters)
    if metadata.xmp is not None:
        options["xmp"] = metadata.xmp
    return options


def _png_info(metadata: EmbeddedMetadata) -> PngInfo:
    info = PngInfo()
    if metadata.parameters is not None:
        # Pillow writes Latin-1 if possible, else UTF-8.
        info.add_text(PARAMETERS_KEYWORD, metadata.parameters)
    if metadata.xmp is not None:
        info.add_itxt(XMP_KEYWORD, metadata.xmp.decode())
    return info


def _require_size(image: Pillow.Image, size: tuple[int, int] | None, max_pixels: int) -> None:
    width, height = image.size
    if size is not None and image.size != size:
        raise ValueError(f"it has {width} x {height} pixels and not {size[0]} x {size[1]}")
    if size is None and width * height > max_pixels:
        raise ValueError(f"it has {width} x {height} pixels, too many to decode")
