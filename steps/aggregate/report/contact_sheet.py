"""The pictures of the report: a fair sample of the run's good images, and a few that each gate marked."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.reconcile import ReconciledShard
from imagekiln.steps.imaging.codecs import encode_thumbnail
from imagekiln.steps.runs.readback import read_image_pixels
from imagekiln.steps.runtime.sanitize import truncate_text
from imagekiln.steps.storage.store import Store

MAX_TEXT_CHARS = 500


@dataclass(frozen=True, slots=True)
class Sample:
    """One picture to show, where its bytes lie, and what the gates say of it. Long texts are cut."""

    image_id: str
    row: int
    part: str
    offset: int
    size: int
    prompt: str
    seed: int
    width: int
    height: int
    marks: tuple[str, ...] = ()
    marks_reason: str | None = None
    contrast: float | None = None
    saturation: float | None = None
    near_duplicate_of: str | None = None


class LowestHashSample:
    """Keeps the images with the lowest ids."""

    def __init__(self, most: int) -> None:
        """Begin with none, and keep at most so many."""
        self.items: list[Sample] = []
        self._most = most

    def add(self, rows: pa.Table) -> None:
        """Let the images in these rows of the manifest take part, each once."""
        if len(self.items) == self._most:
            rows = rows.filter(pc.less(rows["image_id"], self.items[-1].image_id))
        if rows.num_rows:
            found = rows.take(pc.select_k_unstable(rows, self._most, [("image_id", "ascending")]))
            self.items = sorted([*self.items, *to_samples(found)], key=lambda each: each.image_id)[
                : self._most
            ]


def to_samples(rows: pa.Table) -> Iterator[Sample]:
    """The images in these rows of the manifest, as pictures to show."""
    for row in rows.select(list(Sample.__slots__)).to_pylist():
        reason = row["marks_reason"]
        said = {
            "prompt": truncate_text(row["prompt"], MAX_TEXT_CHARS),
            "marks_reason": reason and truncate_text(reason, MAX_TEXT_CHARS),
        }
        yield Sample(**row | said | {"marks": tuple(row["marks"] or ())})


MAX_SAMPLES = 96
MAX_GUARANTEED_SHAPES = 24  # shapes that are sure of a picture
MAX_TRACKED_SHAPES = 1000  # shapes that are looked at, the first that come
THUMBNAIL_SIDE = 256  # pixels
MAX_SAMPLES_PER_GATE = 6  # pictures of each gate
WidthHeight = tuple[int, int]


class ContactSheet:
    """Chooses by lot among all images that are ok; each of the most frequent shapes is sure of one."""

    def __init__(self, marking: Sequence[str] = ()) -> None:
        """Begin with none. `marking` are the gates whose marks are to be shown."""
        self._lot = LowestHashSample(MAX_SAMPLES)
        self._of_shape: dict[WidthHeight, Sample] = {}
        self._counts: dict[WidthHeight, int] = {}
        self._marked = {gate: LowestHashSample(MAX_SAMPLES_PER_GATE) for gate in marking}
        self._marks: dict[str, Sample] = {}

    def add(self, shard: ReconciledShard) -> None:
        """Let one shard's images that are ok take part."""
        good = shard.manifest.filter(pc.equal(shard.manifest["status"], "ok"))
        self._add_shapes(good)
        self._lot.add(good)
        marks = good["marks"].combine_chunks()
        places, gates = pc.list_parent_indices(marks), pc.list_flatten(marks)
        for gate, lot in self._marked.items() if len(gates) else ():
            lot.add(good.take(places.filter(pc.equal(gates, gate))))

    def add_marked(self, gate: str, rows: pa.Table) -> None:
        """Let images take part that a gate marked once all shards were known: their rows of the manifest."""
        self._marked[gate].add(rows)
        shown = pa.array([each.image_id for each in self._choose_samples()])
        self._marks |= {
            each.image_id: each
            for each in to_samples(rows.filter(pc.is_in(rows["image_id"], shown)))
        }

    @property
    def samples(self) -> list[Sample]:
        """The pictures of the sheet, in the order of the run."""
        marked = (self._marks.get(each.image_id, each) for each in self._choose_samples())
        return sorted(marked, key=lambda each: (each.part, each.offset))

    @property
    def samples_by_gate(self) -> dict[str, list[Sample]]:
        """Pictures of each gate that marked some, by lot."""
        return {gate: lot.items for gate, lot in self._marked.items() if lot.items}

    def _choose_samples(self) -> list[Sample]:
        frequent = sorted(self._counts, key=lambda size: (-self._counts[size], size))[
            :MAX_GUARANTEED_SHAPES
        ]
        sure = (self._of_shape[size] for size in frequent)
        return list(islice(dict.fromkeys(chain(sure, self._lot.items)), MAX_SAMPLES))

    def _add_shapes(self, good: pa.Table) -> None:
        shapes = good.group_by(["width", "height"]).aggregate(
            [("image_id", "min"), ("image_id", "count")]
        )
        for shape in shapes.to_pylist():
            size, lowest = (shape["width"], shape["height"]), shape["image_id_min"]
            if size not in self._counts and len(self._counts) == MAX_TRACKED_SHAPES:
                continue
            self._counts[size] = self._counts.get(size, 0) + shape["image_id_count"]
            if size not in self._of_shape or lowest < self._of_shape[size].image_id:
                place = pc.index(good["image_id"], lowest).as_py()
                self._of_shape[size] = next(to_samples(good.slice(place, 1)))


def render_thumbnail(store: Store, sample: Sample) -> bytes:
    """The picture as a JPEG of at most 256 pixels a side, read by the manifest's offset alone.

    Raises BadInput where it is damaged.
    """
    return encode_thumbnail(read_image_pixels(store, asdict(sample)), THUMBNAIL_SIDE)
