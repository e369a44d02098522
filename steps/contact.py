"""The pictures of the contact sheet: a sample spread evenly over the run, read one by one, as small JPEGs."""

import io
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from PIL import Image as Pillow

from imagekiln.steps import tables
from imagekiln.steps.codecs import MOST_PIXELS, decode
from imagekiln.steps.reconcile import Reconciled
from imagekiln.steps.storage import Store

MOST = 96
SIDE = 256  # pixels


@dataclass(frozen=True, slots=True)
class Sample:
    """One picture to show, and where its bytes lie."""

    part: str
    offset: int
    size: int
    prompt: str
    seed: int
    width: int
    height: int


class Samples:
    """Chooses a few images of each shard; where there are more shards than pictures, of some, evenly spaced."""

    def __init__(self, shards: int) -> None:
        """Take the number of shards of the run."""
        self._shards = shards
        self.chosen: list[Sample] = []

    def add(self, number: int, shard: Reconciled) -> None:
        """Choose among one shard's images that are ok."""
        room = (number + 1) * MOST // self._shards - number * MOST // self._shards
        good = shard.manifest.filter(pc.equal(shard.manifest["status"], "ok"))
        if not room or not good.num_rows:
            return
        places = np.unique(np.linspace(0, good.num_rows - 1, room).astype(int))
        rows = good.select(list(Sample.__slots__)).take(places).to_pylist()
        self.chosen += [Sample(**row) for row in rows]


def thumbnail(store: Store, sample: Sample) -> bytes:
    """The picture as a JPEG of at most 256 pixels a side, read by the manifest's offset alone.

    Raises BadInput where it is damaged.
    """
    with store.open(sample.part) as file:
        file.seek(sample.offset)
        content = file.read(sample.size)
    try:
        picture = Pillow.fromarray(decode(content, most=max(MOST_PIXELS, sample.width * sample.height)))
    except tables.DAMAGED as error:
        raise tables.damaged(store.at(sample.part), error) from error
    picture.thumbnail((SIDE, SIDE))
    sink = io.BytesIO()
    picture.save(sink, "JPEG", quality=85)
    return sink.getvalue()
