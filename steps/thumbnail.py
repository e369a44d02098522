"""Small pictures for pages."""

import io

from PIL import Image as Pillow

from imagekiln.steps.codecs import RGB


def encode_thumbnail(rgb: RGB, side: int) -> bytes:
    """The picture as a JPEG of at most `side` pixels in width and height."""
    picture = Pillow.fromarray(rgb)
    picture.thumbnail((side, side))
    sink = io.BytesIO()
    picture.save(sink, "JPEG", quality=85)
    return sink.getvalue()
