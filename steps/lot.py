"""Pictures drawn by lot from any number of images, in memory of a fixed size.

An image_id is a hash, so the images with the lowest ones are as good as drawn by lot, and the same for the same plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.visible import truncate_text

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
            self.items = sorted([*self.items, *to_samples(found)], key=lambda each: each.image_id)[: self._most]


def to_samples(rows: pa.Table) -> Iterator[Sample]:
    """The images in these rows of the manifest, as pictures to show."""
    for row in rows.select(list(Sample.__slots__)).to_pylist():
        reason = row["marks_reason"]
        said = {
            "prompt": truncate_text(row["prompt"], MAX_TEXT_CHARS),
            "marks_reason": reason and truncate_text(reason, MAX_TEXT_CHARS),
        }
        yield Sample(**row | said | {"marks": tuple(row["marks"] or ())})
