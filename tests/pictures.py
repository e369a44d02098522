"""Pictures that condition images, as files."""

import io

import numpy as np
from PIL import Image as Pillow


def noise(seed: int, side: int = 24) -> bytes:
    """A PNG of noise that is a little wider than high, another one for each seed."""
    sink = io.BytesIO()
    rng = np.random.default_rng(seed)
    Pillow.fromarray(rng.integers(0, 256, (side, side + 8, 3), dtype=np.uint8)).save(sink, "PNG")
    return sink.getvalue()


def half(side: int = 16) -> bytes:
    """A mask: the left half black, the right half white."""
    sink = io.BytesIO()
    pixels = np.zeros((side, side), np.uint8)
    pixels[:, side // 2 :] = 255
    Pillow.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def repeat_scan(times: int) -> bytes:
    """A small JPEG with so many scans, nearly all of which change nothing."""
    sink = io.BytesIO()
    Pillow.new("L", (8, 8)).save(sink, "JPEG", progressive=True)
    content = sink.getvalue()
    marker = b"\xff\xda"
    start = content.index(marker, content.index(marker) + 1)
    end = content.index(b"\xff", start + len(marker))
    more = times - content.count(marker)
    return content[:end] + content[start:end] * more + content[end:]
