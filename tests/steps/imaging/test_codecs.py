"""Pixels to files and back, in each kind of encoding."""

import io

import numpy as np
import pytest
from PIL import Image

from imagekiln.steps.imaging.codecs import EmbeddedMetadata, decode_image, encode_image
from imagekiln.steps.imaging.input_images import open_input_image
from imagekiln.steps.imaging.metadata import MAX_COMMENT_UNITS, USER_COMMENT_TAG
from imagekiln.steps.job.output import Encoding, Jpeg
from tests.encodings import KINDS, LOSSLESS, encoding_label, noise
from tests.notes import read
from tests.pictures import repeat_scan

EXIF_IFD = 0x8769
SIZES = [(1, 1), (8, 24), (17, 5)]
METADATA = EmbeddedMetadata("a prompt\nSteps: 1, Seed: 2, Size: 8x8", b"<x/>")


@pytest.mark.parametrize("encoding", LOSSLESS, ids=encoding_label)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_a_lossless_file_gives_the_pixels_as_they_were(
    encoding: Encoding, height: int, width: int
) -> None:
    rgb = noise(height, width)
    assert np.array_equal(decode_image(encode_image(rgb, encoding, METADATA)), rgb)


@pytest.mark.parametrize("encoding", KINDS, ids=encoding_label)
def test_an_image_of_another_size_is_refused_before_it_is_decoded(encoding: Encoding) -> None:
    content = encode_image(noise(8, 24), encoding, METADATA)
    assert decode_image(content, (24, 8)).shape == (8, 24, 3)
    with pytest.raises(ValueError, match="it has 24 x 8 pixels and not 8 x 24"):
        decode_image(content, (8, 24))


def test_a_jpeg_of_scans_without_end_is_refused_before_it_is_decoded() -> None:
    assert decode_image(repeat_scan(400)).shape == (8, 8, 3)
    with pytest.raises(ValueError, match="it has more than 500 scans"):
        decode_image(repeat_scan(600))


@pytest.mark.parametrize("kind", ["GIF", "PPM", "ICO"])
def test_other_kinds_of_file_are_not_decoded(kind: str) -> None:
    sink = io.BytesIO()
    Image.fromarray(noise(16, 16)).save(sink, kind)
    for decode in (decode_image, open_input_image):
        with pytest.raises((OSError, ValueError)):
            decode(sink.getvalue())


@pytest.mark.parametrize("encoding", KINDS, ids=encoding_label)
def test_a_damaged_file_does_not_decode(encoding: Encoding) -> None:
    content = encode_image(noise(32, 32), encoding, METADATA)
    for damaged in (
        b"",
        content[:1],
        content[: len(content) // 2],
        content[:60],
        b"GIF89a" + content,
    ):
        with pytest.raises((OSError, ValueError)):
            decode_image(damaged, (32, 32))


def test_an_image_too_large_to_decode_is_refused_by_its_header() -> None:
    sink = io.BytesIO()
    Image.new("1", (40_000, 2000)).save(sink, "PNG")
    with pytest.raises(ValueError, match="it has 40000 x 2000 pixels, too many to decode"):
        decode_image(sink.getvalue())


@pytest.mark.parametrize("text", ["", "a", "\u05e9\u05dc\u05d5\u05dd \N{ROCKET}\nSteps: 1"])
def test_other_readers_find_a_text_in_exif(text: str) -> None:
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
