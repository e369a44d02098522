"""The pictures of the contact sheet: a fair sample of the run's good images, read one by one, as small JPEGs.

An image_id is a hash, so the images with the lowest ones are as good as drawn by lot, and the same for the same plan.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image as Pillow

from imagekiln.steps import tables
from imagekiln.steps.codecs import MOST_PIXELS, decode
from imagekiln.steps.reconcile import Reconciled
from imagekiln.steps.storage import Store
from imagekiln.steps.visible import cut

MOST = 96
MOST_SHAPES = 24  # shapes that are sure of a picture
KNOWN_SHAPES = 1000  # shapes that are looked at, the first that come
SIDE = 256  # pixels
PROMPT_CHARS = 500

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """One picture to show, and where its bytes lie. Long prompts are cut."""

    image_id: str
    row: int
    part: str
    offset: int
    size: int
    prompt: str
    seed: int
    width: int
    height: int


class Samples:
    """Chooses by lot among all images that are ok; each of the most frequent shapes is sure of one."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lowest: list[Sample] = []
        self._of_shape: dict[Size, Sample] = {}
        self._counts: dict[Size, int] = {}

    def add(self, shard: Reconciled) -> None:
        """Let one shard's images that are ok take part."""
        good = shard.manifest.filter(pc.equal(shard.manifest["status"], "ok"))
        self._add_shapes(good)
        if len(self._lowest) == MOST:
            good = good.filter(pc.less(good["image_id"], self._lowest[-1].image_id))
        found = good.take(pc.select_k_unstable(good, MOST, [("image_id", "ascending")]))
        self._lowest = sorted([*self._lowest, *_samples(found)], key=lambda each: each.image_id)[:MOST]

    @property
    def chosen(self) -> list[Sample]:
        """The pictures, in the order of the run."""
        frequent = sorted(self._counts, key=lambda size: (-self._counts[size], size))[:MOST_SHAPES]
        sure = (self._of_shape[size] for size in frequent)
        chosen = islice(dict.fromkeys(chain(sure, self._lowest)), MOST)
        return sorted(chosen, key=lambda each: (each.part, each.offset))

    def _add_shapes(self, good: pa.Table) -> None:
        shapes = good.group_by(["width", "height"]).aggregate([("image_id", "min"), ("image_id", "count")])
        for shape in shapes.to_pylist():
            size, lowest = (shape["width"], shape["height"]), shape["image_id_min"]
            if size not in self._counts and len(self._counts) == KNOWN_SHAPES:
                continue
            self._counts[size] = self._counts.get(size, 0) + shape["image_id_count"]
            if size not in self._of_shape or lowest < self._of_shape[size].image_id:
                place = pc.index(good["image_id"], lowest).as_py()
                self._of_shape[size] = next(_samples(good.slice(place, 1)))


def _samples(rows: pa.Table) -> Iterator[Sample]:
    for row in rows.select(list(Sample.__slots__)).to_pylist():
        yield Sample(**row | {"prompt": cut(row["prompt"], PROMPT_CHARS)})


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
