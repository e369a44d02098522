"""Reading one image back, from the object and the offset that its row in the manifest names."""

import hashlib
from collections.abc import Mapping

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.codecs import MAX_DECODED_PIXELS, RGB, decode_image
from imagekiln.steps.runs.tables import DAMAGE_ERRORS, damage_error
from imagekiln.steps.storage.store import Store


def read_image_bytes(store: Store, row: Mapping[str, object]) -> bytes:
    """The stored bytes of an image that is ok.

    Raises BadInput where they are not those that were written: they may be of any file, behind a
    link. Raises Missing, TryAgain too.
    """
    part = row["part"]
    offset = row["byte_offset"]
    size = row["byte_size"]
    if not (isinstance(part, str) and isinstance(offset, int) and isinstance(size, int)):
        raise BadInput(
            f"{store.uri}: the manifest does not say where image {row['image_id']} is. "
            "Aggregate again."
        )
    with store.open(part) as file:
        file.seek(offset)
        content = file.read(size)
    if "sha256" not in row or row["sha256"] == hashlib.sha256(content).hexdigest():
        return content
    raise damage_error(store.uri_of(part), ValueError("an image has other bytes than were written"))


def read_image_pixels(store: Store, row: Mapping[str, object]) -> RGB:
    """The pixels of an image that is ok, RGB uint8 (height, width, 3).

    Raises Missing, TryAgain, or BadInput where the image does not decode.
    """
    return decode_stored_image(store, row, read_image_bytes(store, row))


def decode_stored_image(store: Store, row: Mapping[str, object], content: bytes) -> RGB:
    """The pixels of an image whose bytes were read. Raises BadInput where it does not decode."""
    width = row["width"]
    height = row["height"]
    planned = width * height if isinstance(width, int) and isinstance(height, int) else 0
    try:
        return decode_image(content, most=max(MAX_DECODED_PIXELS, planned))
    except DAMAGE_ERRORS as error:
        raise damage_error(store.uri_of(str(row["part"])), error) from error
