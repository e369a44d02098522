"""Histograms and frequent values of a run's images, in memory that does not grow with the run."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.image_counts import add_frequent, count_values

MAX_BINS = 24
SIGNIFICANT_BITS = 10  # of a number in a histogram
MAX_TOP_VALUES = 12


@dataclass(frozen=True, slots=True)
class Bin:
    """Number of values that are at least `low` and under `high`."""

    low: float
    high: float
    images: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts in at most 24 bins. `least` and `most` are exact."""

    least: int | float = 0
    most: int | float = 0
    bins: tuple[Bin, ...] = ()


class HistogramBuilder:
    """Counts finite numbers of any size and sign, rounded down to a few significant bits."""

    def __init__(self) -> None:
        """Begin with no value."""
        self._counts: Counter[float] = Counter()
        self._least: int | float = np.inf
        self._most: int | float = -np.inf

    def add(self, values: pa.ChunkedArray) -> None:
        """Count these values. Ignores nulls, NaN and infinities."""
        is_finite = pc.is_finite(values)
        numbers = values.filter(is_finite)
        if not len(numbers):
            return
        extremes = pc.min_max(numbers).as_py()
        self._least = min(self._least, extremes["min"])
        self._most = max(self._most, extremes["max"])
        rounded = _round_down(numbers.to_numpy())
        self._counts += count_values(pa.array(rounded))

    def build(self) -> Histogram:
        """The histogram, in bins of about one width."""
        if not self._counts:
            return Histogram()
        is_whole = isinstance(self._most, int)
        end = self._most + 1 if is_whole else np.nextafter(self._most, np.inf)
        starts = np.linspace(
            self._least,
            end,
            MAX_BINS,
            endpoint=False,
        )
        if is_whole:
            starts = np.floor(starts)
        # Bounds are rounded as values are, so that each value is in its bin.
        distinct_starts = np.unique(_round_down(starts))
        bounds = np.append(distinct_starts, end)
        weights = list(self._counts.values())
        images, _ = np.histogram(list(self._counts), bounds, weights=weights)
        columns = (bounds[:-1].tolist(), bounds[1:].tolist(), images.tolist())
        return Histogram(self._least, self._most, tuple(map(Bin, *columns)))


def _round_down(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    mantissas, exponents = np.frexp(values)
    scaled = np.ldexp(mantissas, SIGNIFICANT_BITS)
    digits = np.floor(scaled)
    rounded: npt.NDArray[np.float64] = np.ldexp(digits, exponents - SIGNIFICANT_BITS)
    return rounded


@dataclass(frozen=True, slots=True)
class ValueCount:
    """A setting's value, and the number of images that have it."""

    value: str
    images: int


@dataclass(frozen=True, slots=True)
class TopValues:
    """A setting's most frequent values; `others` counts the rarer ones, and their images."""

    top: tuple[ValueCount, ...] = ()
    others: int = 0
    other_images: int = 0


def _top_values(
    counts: Counter[Any], total: int, format_value: Callable[[Any], str] = str
) -> TopValues:
    common = counts.most_common(MAX_TOP_VALUES)
    return TopValues(
        top=tuple(ValueCount(format_value(value), images) for value, images in common),
        others=len(counts) - len(common),
        other_images=total - sum(images for _, images in common),
    )


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions over planned images, but `bytes` and `scores` over those that are ok.

    Prompts are measured in characters, shapes in pixels.
    """

    bytes: Histogram = field(default_factory=Histogram)
    prompt: Histogram = field(default_factory=Histogram)
    shapes: TopValues = field(default_factory=TopValues)
    steps: TopValues = field(default_factory=TopValues)
    guidance: TopValues = field(default_factory=TopValues)
    scores: dict[str, Histogram] = field(default_factory=dict)


class DistributionBuilder:
    """Builds distributions shard by shard."""

    def __init__(self, scores: Iterable[str] = ()) -> None:
        """Begin with no image. `scores` are the columns of the job's scores."""
        self._scores = {name: HistogramBuilder() for name in scores}
        self._bytes = HistogramBuilder()
        self._prompt = HistogramBuilder()
        self._shapes: Counter[str] = Counter()
        self._steps: Counter[int] = Counter()
        self._guidance: Counter[float] = Counter()
        self._images = 0
        self._guided_images = 0

    def add(self, manifest: pa.Table) -> None:
        """Count the images of one shard."""
        self._images += manifest.num_rows
        self._bytes.add(manifest["byte_size"])
        prompt_lengths = pc.utf8_length(manifest["prompt"])
        self._prompt.add(prompt_lengths)
        is_ok = pc.equal(manifest["status"], "ok")
        for name, histogram in self._scores.items():
            histogram.add(manifest[name].filter(is_ok))

        add_frequent(self._steps, count_values(manifest["steps"]))
        guidance = pc.drop_null(manifest["guidance"])
        self._guided_images += len(guidance)
        add_frequent(self._guidance, count_values(guidance))
        shapes = pc.binary_join_element_wise(
            manifest["width"].cast(pa.string()),
            manifest["height"].cast(pa.string()),
            " \N{MULTIPLICATION SIGN} ",
        )
        add_frequent(self._shapes, count_values(shapes))

    def build(self) -> Distributions:
        """The distributions of all images added."""
        return Distributions(
            bytes=self._bytes.build(),
            prompt=self._prompt.build(),
            shapes=_top_values(self._shapes, self._images),
            steps=_top_values(self._steps, self._images),
            guidance=_top_values(self._guidance, self._guided_images, "{:g}".format),
            scores={name: scores.build() for name, scores in self._scores.items()},
        )
