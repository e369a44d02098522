"""What became of a run's images, in numbers that add up in any order."""

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.runs.permanence import permanent_mask


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """How many images have each status and each mark, and the bytes of those that have a file.

    `permanent_failures` are those that another try cannot mend.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    permanent_failures: int = 0

    def __add__(self, other: "ImageCounts") -> "ImageCounts":
        """The counts of both."""
        return ImageCounts(
            self.statuses + other.statuses,
            self.marks + other.marks,
            self.bytes + other.bytes,
            self.permanent_failures + other.permanent_failures,
        )


def count_images(manifest: pa.Table) -> ImageCounts:
    """Count the images of a manifest."""
    permanent = permanent_mask(manifest["status"], manifest["error"])
    return ImageCounts(
        _value_counts(manifest["status"]),
        _value_counts(pc.list_flatten(manifest["marks"])),
        pc.sum(manifest["byte_size"]).as_py() or 0,
        pc.sum(permanent).as_py() or 0,
    )


def _value_counts(column: pa.ChunkedArray) -> Counter[str]:
    entries = pc.value_counts(column).to_pylist()
    return Counter({entry["values"]: entry["counts"] for entry in entries})
