"""A text in EXIF."""

import io

import pytest
from PIL import Image

from imagekiln.steps.imaging.codecs import EmbeddedMetadata, encode_image
from imagekiln.steps.imaging.metadata import MAX_COMMENT_UNITS, USER_COMMENT_TAG
from imagekiln.steps.job.output import Jpeg
from tests.encodings import noise
from tests.notes import read

EXIF_IFD = 0x8769


@pytest.mark.parametrize("text", ["", "a", "\u05e9\u05dc\u05d5\u05dd \N{ROCKET}\nSteps: 1"])
def test_other_readers_find_the_text(text: str) -> None:
    content = encode_image(noise(8, 8), Jpeg(), EmbeddedMetadata(text))
    assert read(content).parameters == text
    with Image.open(io.BytesIO(content)) as image:
        assert image.getexif().get_ifd(EXIF_IFD) == {
            USER_COMMENT_TAG: b"UNICODE\0" + text.encode("utf-16-be")
        }


def test_the_longest_text_fits_a_jpeg_and_no_longer_one() -> None:
    longest = "x" * MAX_COMMENT_UNITS
    content = encode_image(noise(8, 8), Jpeg(), EmbeddedMetadata(longest))
    assert read(content).parameters == longest
    with pytest.raises(ValueError, match="too long"):
        encode_image(noise(8, 8), Jpeg(), EmbeddedMetadata(longest + "x"))
