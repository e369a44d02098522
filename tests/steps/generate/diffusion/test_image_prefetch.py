"""Input images: read ahead, and no larger in memory than they are needed."""

import hashlib
import io
from pathlib import Path

from PIL import Image as Pillow

from imagekiln.steps.generate.diffusion.image_prefetch import (
    PREFETCH_IMAGES,
    ImagePrefetcher,
    image_request,
)
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.runs.keys import input_image_key
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.runs import image_row


class Counted:
    """A store that tells what was read."""

    def __init__(self, store: Store) -> None:
        self.inside = store
        self.read_keys: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.inside, name)

    def read(self, key: str) -> bytes:
        self.read_keys.append(key)
        return self.inside.read(key)


def _references(store: Store, count: int) -> list[ImageRow]:
    rows = []
    for place in range(count):
        file = io.BytesIO()
        Pillow.new("RGB", (16, 16), (place % 256, place // 256, 0)).save(file, "PNG")
        digest = hashlib.sha256(file.getvalue()).hexdigest()
        store.create(input_image_key(digest), file.getvalue())
        rows.append(image_row("a red circle", place, reference_image=digest))
    return rows


def test_pictures_are_read_ahead_although_those_of_earlier_rows_were_not_asked_for(
    tmp_path: Path,
) -> None:
    store = Counted(open_store(str(tmp_path)))
    rows = _references(store.inside, 3 * PREFETCH_IMAGES)
    inputs = ImagePrefetcher(store)  # type: ignore[arg-type]  # only reading is needed
    inputs.set_upcoming(rows)
    for row in rows[: 2 * PREFETCH_IMAGES]:  # what was made of them is known already
        inputs.release([row])
    for row in rows[2 * PREFETCH_IMAGES :]:
        inputs.get_preprocessed(image_request(row, "reference_image"))
    inputs._pool.shutdown()  # those not asked for may still be read
    assert len(store.read_keys) == len({*store.read_keys}) == 3 * PREFETCH_IMAGES


def test_no_more_is_read_ahead_than_so_many_pictures(tmp_path: Path) -> None:
    store = Counted(open_store(str(tmp_path)))
    rows = _references(store.inside, 3 * PREFETCH_IMAGES)
    inputs = ImagePrefetcher(store)  # type: ignore[arg-type]  # only reading is needed
    inputs.set_upcoming(rows)
    inputs.get_preprocessed(image_request(rows[0], "reference_image"))
    assert len(inputs._ahead) == PREFETCH_IMAGES


def test_of_a_reference_only_what_was_made_of_it_is_kept(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (row,) = _references(store, 1)
    assert ImagePrefetcher(store, lambda picture: picture.size).get_preprocessed(
        image_request(row, "reference_image")
    ) == (16, 16)
