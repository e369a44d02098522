"""The pictures of the contact sheet: a sample spread evenly over the run, read one by one, as small JPEGs."""

import io
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from PIL import Image as Pillow

from imagekiln.steps.encode import decode
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
    """Chooses a few images of each shard, or of every so many shards where there are more shards than pictures."""

    def __init__(self, shards: int) -> None:
        """Take the number of shards of the run."""
        self._every = -(-shards // MOST)
        self._each = -(-MOST * self._every // shards)
        self.chosen: list[Sample] = []

    def add(self, number: int, shard: Reconciled) -> None:
        """Choose among one shard's images that are ok."""
        room = min(self._each, MOST - len(self.chosen))
        if number % self._every or not room:
            return
        good = shard.manifest.filter(pc.equal(shard.manifest["status"], "ok"))
        if not good.num_rows:
            return
        places = np.unique(np.linspace(0, good.num_rows - 1, room).astype(int))
        rows = good.select(list(Sample.__slots__)).take(places).to_pylist()
        self.chosen += [Sample(**row) for row in rows]


def thumbnail(store: Store, sample: Sample) -> bytes:
    """The picture as a JPEG of at most 256 pixels a side, read by the manifest's offset alone."""
    with store.open(sample.part) as file:
        file.seek(sample.offset)
        content = file.read(sample.size)
    picture = Pillow.fromarray(decode(content))
    picture.thumbnail((SIDE, SIDE))
    sink = io.BytesIO()
    picture.save(sink, "JPEG", quality=85)
    return sink.getvalue()
