"""Pictures that look alike have nearly the same hash, and others do not."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from imagekiln.steps.imaging.measures import LOW_FREQUENCY_COSINES, perceptual_hash


def _photo(seed: int, side: int = 256) -> Image.Image:
    """A picture with the falling spectrum of photographs."""
    chance = np.random.default_rng(seed)
    layers = [
        np.asarray(
            Image.fromarray(chance.random((cells, cells), np.float32)).resize((side, side), 3)
        )
        / cells
        for cells in (4, 8, 16, 32)
    ]
    grey = sum(layers)
    return Image.fromarray(np.uint8(255 * (grey - np.min(grey)) / np.ptp(grey)))


def _apart(one: Image.Image, other: Image.Image) -> int:
    return ((perceptual_hash(one) ^ perceptual_hash(other)) & (2**64 - 1)).bit_count()


def _jpeg(picture: Image.Image) -> Image.Image:
    sink = io.BytesIO()
    picture.save(sink, "JPEG", quality=40)
    return Image.open(sink).convert("L")


@pytest.mark.parametrize(
    "change",
    [
        _jpeg,
        lambda picture: picture.resize((113, 90)),
        lambda picture: picture.resize((700, 700)),
        lambda picture: ImageEnhance.Brightness(picture).enhance(0.7),
    ],
    ids=["JPEG", "smaller", "larger", "darker"],
)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_picture_stored_otherwise_differs_in_few_bits(seed: int, change: object) -> None:
    picture = _photo(seed)
    assert _apart(picture, change(picture)) <= 6  # type: ignore[operator]  # one of the functions above


def test_other_pictures_differ_in_many_bits() -> None:
    pictures = [_photo(seed) for seed in range(40)]
    apart = [_apart(one, other) for place, one in enumerate(pictures) for other in pictures[:place]]
    assert min(apart) > 12
    assert 28 < np.mean(apart) < 36


def test_a_picture_turned_or_inverted_is_another() -> None:
    picture = _photo(3)
    assert _apart(picture, picture.rotate(90)) > 12
    assert _apart(picture, ImageOps.invert(picture)) > 48


def test_the_transform_is_the_discrete_cosine_transform() -> None:
    places, frequencies = np.arange(32), np.arange(8)[:, None]
    assert (
        np.abs(
            LOW_FREQUENCY_COSINES / 2**14 - np.cos(np.pi * frequencies * (2 * places + 1) / 64)
        ).max()
        < 1e-4
    )


def test_what_cancels_out_by_symmetry_is_nothing_and_not_chance() -> None:
    half = np.asarray(_photo(5, 32))[:, :16]
    picture = Image.fromarray(np.hstack([half, half[:, ::-1]]))
    pixels = np.asarray(picture, np.int64)
    assert (LOW_FREQUENCY_COSINES @ pixels @ LOW_FREQUENCY_COSINES.T)[:, 1::2].any() == False  # noqa: E712  # numpy's own truth
    assert perceptual_hash(picture) == perceptual_hash(ImageOps.mirror(picture))


def test_a_hash_is_what_it_was() -> None:
    pixels = np.add.outer(np.arange(64) ** 2 % 251, 3 * np.arange(64)) % 256
    assert perceptual_hash(Image.fromarray(pixels.astype(np.uint8))) == -7705877734170348754
