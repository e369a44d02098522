"""How a run's images spread over size, shape, steps, guidance and length of prompt, in memory of a fixed size."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.histogram import Histogram, LogHistogram
from imagekiln.steps.tally import TopKCounter, TopValues

SIDE_BITS = 17  # a side is at most 65,536


@dataclass(frozen=True, slots=True)
class Distributions:
    """Bytes are of images that are ok; all else is of planned images. Prompts are in characters."""

    bytes: Histogram = field(default_factory=Histogram)
    prompt: Histogram = field(default_factory=Histogram)
    shapes: TopValues = field(default_factory=TopValues)
    steps: TopValues = field(default_factory=TopValues)
    guidance: TopValues = field(default_factory=TopValues)


class DistributionBuilder:
    """Counts shard after shard."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._bytes, self._prompt = LogHistogram(), LogHistogram()
        self._shapes, self._steps, self._guidance = TopKCounter[int](), TopKCounter[int](), TopKCounter[float]()

    def add(self, manifest: pa.Table) -> None:
        """Count one shard's images."""
        self._bytes.add(pc.drop_null(manifest["size"]).to_numpy())
        self._prompt.add(pc.utf8_length(manifest["prompt"]).to_numpy())
        self._shapes.add_column((manifest["width"].to_numpy() << SIDE_BITS) | manifest["height"].to_numpy())
        self._steps.add_column(manifest["steps"].to_numpy())
        self._guidance.add_column(manifest["guidance"].to_numpy())

    def build(self) -> Distributions:
        """What was counted."""
        return Distributions(
            bytes=self._bytes.to_histogram(),
            prompt=self._prompt.to_histogram(),
            shapes=self._shapes.top_values(_format_shape),
            steps=self._steps.top_values(str),
            guidance=self._guidance.top_values("{:g}".format),
        )


def _format_shape(key: int) -> str:
    return f"{key >> SIDE_BITS} \N{MULTIPLICATION SIGN} {key & (1 << SIDE_BITS) - 1}"
