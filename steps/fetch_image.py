"""One image of a run, by its row in the manifest: one ranged read."""

from collections.abc import Mapping

from imagekiln.steps import tables
from imagekiln.steps.codecs import MOST_PIXELS, RGB, decode
from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage import Store


def content(store: Store, row: Mapping[str, object]) -> bytes:
    """The stored bytes of an image that is ok. Raises Missing, BadInput, TryAgain."""
    part, offset, size = row["part"], row["offset"], row["size"]
    if not (isinstance(part, str) and isinstance(offset, int) and isinstance(size, int)):
        raise BadInput(f"{store.uri}: the manifest does not say where image {row['image_id']} is. Aggregate again.")
    with store.open(part) as file:
        file.seek(offset)
        return file.read(size)


def pixels(store: Store, row: Mapping[str, object]) -> RGB:
    """The pixels of an image that is ok, RGB uint8 (height, width, 3). Raises BadInput where they do not decode."""
    there, width, height = content(store, row), row["width"], row["height"]
    asked = width * height if isinstance(width, int) and isinstance(height, int) else 0
    try:
        return decode(there, most=max(MOST_PIXELS, asked))
    except tables.DAMAGED as error:
        raise tables.damaged(store.at(str(row["part"])), error) from error
