"""Pixels to files and back, for each kind of encoding. The same pixels and notes give the same bytes."""

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
PARAMETERS_KEYWORD, XMP_KEYWORD = "parameters", "XML:com.adobe.xmp"
PILLOW_SUBSAMPLING = {444: 0, 422: 1, 420: 2}  # as Pillow numbers them
LOSSLESS_WEBP_EFFORT = 75  # of a lossless WebP: how hard it tries
MAX_DECODED_PIXELS = 4096 * 4096


@dataclass(frozen=True, slots=True)
class EmbeddedMetadata:
    """What goes into a file beside the pixels: the text `parameters`, and an XMP packet."""

    parameters: str | None = None
    xmp: bytes | None = None


NO_METADATA = EmbeddedMetadata()


def encode_image(rgb: RGB, encoding: Encoding, notes: EmbeddedMetadata = NO_METADATA) -> bytes:
    """RGB uint8 (height, width, 3) as a file of that kind."""
    picture, sink = Pillow.fromarray(rgb), io.BytesIO()
    match encoding:
        case Png():
            picture.save(sink, "PNG", compress_level=encoding.level, pnginfo=_png_info(notes))
        case Jpeg():
            _save_jpeg(picture, sink, encoding, notes)
        case Webp():
            quality = LOSSLESS_WEBP_EFFORT if encoding.lossless else encoding.quality
            how = {"quality": quality, "lossless": encoding.lossless, "method": encoding.method}
            picture.save(sink, "WEBP", **how, **_exif_and_xmp(notes))
    return sink.getvalue()


def _save_jpeg(
    picture: Pillow.Image, sink: io.BytesIO, encoding: Jpeg, notes: EmbeddedMetadata
) -> None:
    picture.save(
        sink,
        "JPEG",
        quality=encoding.quality,
        subsampling=PILLOW_SUBSAMPLING[encoding.subsampling],
        progressive=encoding.progressive,
        **_exif_and_xmp(notes),
    )


def _exif_and_xmp(notes: EmbeddedMetadata) -> dict[str, bytes]:
    found = {
        "exif": None if notes.parameters is None else exif_user_comment(notes.parameters),
        "xmp": notes.xmp,
    }
    return {name: content for name, content in found.items() if content is not None}


def _png_info(notes: EmbeddedMetadata) -> PngInfo:
    info = PngInfo()
    if notes.parameters is not None:
        info.add_text(
            PARAMETERS_KEYWORD, notes.parameters
        )  # as Latin-1 where that has all the letters, else as UTF-8
    if notes.xmp is not None:
        info.add_itxt(XMP_KEYWORD, notes.xmp.decode())
    return info


def decode_image(
    content: bytes, size: tuple[int, int] | None = None, most: int = MAX_DECODED_PIXELS
) -> RGB:
    """The pixels of a stored image of this width and height, or else of at most so many pixels.

    Raises OSError or ValueError where it is none of ours or has another size, before it takes memory for pixels.
    """
    try:
        with Pillow.open(io.BytesIO(content), formats=["PNG", "JPEG", "WEBP"]) as image:
            _require_size(image.size, size, most)
            return np.asarray(image.convert("RGB"))
    except Pillow.DecompressionBombError as error:
        raise ValueError(str(error)) from error


def _require_size(found: tuple[int, int], wanted: tuple[int, int] | None, most: int) -> None:
    if wanted is not None and found != wanted:
        raise ValueError(f"it has {found[0]} x {found[1]} pixels and not {wanted[0]} x {wanted[1]}")
    if wanted is None and found[0] * found[1] > most:
        raise ValueError(f"it has {found[0]} x {found[1]} pixels, too many to look at")


def encode_thumbnail(rgb: RGB, side: int) -> bytes:
    """The picture as a JPEG of at most `side` pixels in width and height."""
    picture = Pillow.fromarray(rgb)
    picture.thumbnail((side, side))
    sink = io.BytesIO()
    picture.save(sink, "JPEG", quality=85)
    return sink.getvalue()


def hash_pixels(rgb: RGB) -> str:
    """SHA-256 of the pixels alone, row by row, whatever the encoding."""
    return hashlib.sha256(np.ascontiguousarray(rgb).tobytes()).hexdigest()
