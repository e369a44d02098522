"""Batch sizes: powers of two, halved where memory holds no more."""


def floor_power_of_two(most: float) -> int:
    """The largest power of two up to `most`; 1 where there is none."""
    return 1 << max(0, int(max(0, most)).bit_length() - 1)


def limit_batch_pixels(images: int, pixels: int, most: int | None) -> int:
    """A batch of images of so many pixels each, halved until it has no more than `most` at once, or one image."""
    while most is not None and images > 1 and images * pixels > most:
        images //= 2
    return images
