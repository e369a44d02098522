"""One image of a run, by its row in the manifest: one ranged read."""

from collections.abc import Mapping

from imagekiln.steps import tables
from imagekiln.steps.codecs import MAX_DECODED_PIXELS, RGB, decode_image
from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage import Store


def read_image_bytes(store: Store, row: Mapping[str, object]) -> bytes:
    """The stored bytes of an image that is ok. Raises Missing, BadInput, TryAgain."""
    part, offset, size = row["part"], row["offset"], row["size"]
    if not (isinstance(part, str) and isinstance(offset, int) and isinstance(size, int)):
        raise BadInput(f"{store.uri}: the manifest does not say where image {row['image_id']} is. Aggregate again.")
    with store.open(part) as file:
        file.seek(offset)
        return file.read(size)


def read_image_pixels(store: Store, row: Mapping[str, object]) -> RGB:
    """The pixels of an image that is ok, RGB uint8 (height, width, 3). Raises BadInput where they do not decode."""
    there, width, height = read_image_bytes(store, row), row["width"], row["height"]
    asked = width * height if isinstance(width, int) and isinstance(height, int) else 0
    try:
        return decode_image(there, most=max(MAX_DECODED_PIXELS, asked))
    except tables.DAMAGE_ERRORS as error:
        raise tables.damage_error(store.uri_of(str(row["part"])), error) from error
