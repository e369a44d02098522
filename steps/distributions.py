"""How a run's images spread over size, shape, steps, guidance and length of prompt, in memory of a fixed size."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.histogram import Growing, Histogram
from imagekiln.steps.tally import Choices, Tally

SIDE_BITS = 17  # a side is at most 65,536


@dataclass(frozen=True, slots=True)
class Distributions:
    """Bytes are of images that are ok; all else is of planned images. Prompts are in characters."""

    bytes: Histogram = field(default_factory=Histogram)
    prompt: Histogram = field(default_factory=Histogram)
    shapes: Choices = field(default_factory=Choices)
    steps: Choices = field(default_factory=Choices)
    guidance: Choices = field(default_factory=Choices)


class Spread:
    """Counts shard after shard."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._bytes, self._prompt = Growing(), Growing()
        self._shapes, self._steps, self._guidance = Tally[int](), Tally[int](), Tally[float]()

    def add(self, manifest: pa.Table) -> None:
        """Count one shard's images."""
        self._bytes.add(pc.drop_null(manifest["size"]).to_numpy())
        self._prompt.add(pc.utf8_length(manifest["prompt"]).to_numpy())
        self._shapes.add_column((manifest["width"].to_numpy() << SIDE_BITS) | manifest["height"].to_numpy())
        self._steps.add_column(manifest["steps"].to_numpy())
        self._guidance.add_column(manifest["guidance"].to_numpy())

    def distributions(self) -> Distributions:
        """What was counted."""
        return Distributions(
            bytes=self._bytes.histogram(),
            prompt=self._prompt.histogram(),
            shapes=self._shapes.choices(_shape),
            steps=self._steps.choices(str),
            guidance=self._guidance.choices("{:g}".format),
        )


def _shape(key: int) -> str:
    return f"{key >> SIDE_BITS} \N{MULTIPLICATION SIGN} {key & (1 << SIDE_BITS) - 1}"
