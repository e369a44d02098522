"""The pictures of the report: a fair sample of the run's good images, and a few that each gate marked."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import fetch_image
from imagekiln.steps.lot import Lot, Sample, samples
from imagekiln.steps.reconcile import Reconciled
from imagekiln.steps.storage import Store
from imagekiln.steps.thumbnail import jpeg

MOST = 96
MOST_SHAPES = 24  # shapes that are sure of a picture
KNOWN_SHAPES = 1000  # shapes that are looked at, the first that come
SIDE = 256  # pixels
MOST_MARKED = 6  # pictures of each gate

Size = tuple[int, int]


class Samples:
    """Chooses by lot among all images that are ok; each of the most frequent shapes is sure of one."""

    def __init__(self, marking: Sequence[str] = ()) -> None:
        """Begin with none. `marking` are the gates whose marks are to be shown."""
        self._lot = Lot(MOST)
        self._of_shape: dict[Size, Sample] = {}
        self._counts: dict[Size, int] = {}
        self._marked = {gate: Lot(MOST_MARKED) for gate in marking}
        self._marks: dict[str, Sample] = {}

    def add(self, shard: Reconciled) -> None:
        """Let one shard's images that are ok take part."""
        good = shard.manifest.filter(pc.equal(shard.manifest["status"], "ok"))
        self._add_shapes(good)
        self._lot.add(good)
        marks = good["marks"].combine_chunks()
        places, gates = pc.list_parent_indices(marks), pc.list_flatten(marks)
        for gate, lot in self._marked.items() if len(gates) else ():
            lot.add(good.take(places.filter(pc.equal(gates, gate))))

    def mark(self, gate: str, rows: pa.Table) -> None:
        """Let images take part that a gate marked once all shards were known: their rows of the manifest."""
        self._marked[gate].add(rows)
        shown = pa.array([each.image_id for each in self._sheet()])
        self._marks |= {each.image_id: each for each in samples(rows.filter(pc.is_in(rows["image_id"], shown)))}

    @property
    def chosen(self) -> list[Sample]:
        """The pictures of the sheet, in the order of the run."""
        marked = (self._marks.get(each.image_id, each) for each in self._sheet())
        return sorted(marked, key=lambda each: (each.part, each.offset))

    @property
    def marked(self) -> dict[str, list[Sample]]:
        """Pictures of each gate that marked some, by lot."""
        return {gate: lot.drawn for gate, lot in self._marked.items() if lot.drawn}

    def _sheet(self) -> list[Sample]:
        frequent = sorted(self._counts, key=lambda size: (-self._counts[size], size))[:MOST_SHAPES]
        sure = (self._of_shape[size] for size in frequent)
        return list(islice(dict.fromkeys(chain(sure, self._lot.drawn)), MOST))

    def _add_shapes(self, good: pa.Table) -> None:
        shapes = good.group_by(["width", "height"]).aggregate([("image_id", "min"), ("image_id", "count")])
        for shape in shapes.to_pylist():
            size, lowest = (shape["width"], shape["height"]), shape["image_id_min"]
            if size not in self._counts and len(self._counts) == KNOWN_SHAPES:
                continue
            self._counts[size] = self._counts.get(size, 0) + shape["image_id_count"]
            if size not in self._of_shape or lowest < self._of_shape[size].image_id:
                place = pc.index(good["image_id"], lowest).as_py()
                self._of_shape[size] = next(samples(good.slice(place, 1)))


def thumbnail(store: Store, sample: Sample) -> bytes:
    """The picture as a JPEG of at most 256 pixels a side, read by the manifest's offset alone.

    Raises BadInput where it is damaged.
    """
    return jpeg(fetch_image.pixels(store, asdict(sample)), SIDE)
