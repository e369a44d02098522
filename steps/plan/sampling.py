"""Stratified samples of a plan's images, for a preview or a canary.

A sample has images of each shape in proportion to its share, or only of the most frequent shapes if
it is small. Within a shape, prompt lengths range from short to long. Ties are broken by image hash.
"""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.plan.catalog import Catalog, ImageGroup
from imagekiln.steps.plan.catalog_sql import SHAPE, candidate_group
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA

IMAGE_HASH = "hash(replace(CAST(image_id AS VARCHAR), '-', ''))"
CANDIDATES_PER_IMAGE = 8  # random images per sampled image, to choose from by prompt length
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlanSample:
    """Numbers of sampled images in generation order, and the groups without these images."""

    numbers: Int64Array
    rest: tuple[ImageGroup, ...]


def choose_sample(catalog: Catalog, images: int) -> PlanSample:
    """Sample up to `images` images.

    All candidates of an image are sampled together.
    """
    together = catalog.candidates
    sizes = [group.images // together for group in catalog.groups]
    quotas = _divide_sample(sizes, -(-images // together))
    candidates = _candidates_by_group(catalog, quotas)
    lengths = _read_prompt_lengths(catalog, candidates)

    sampled: list[int] = []
    rest: list[ImageGroup] = []
    for group, quota, numbers in zip(catalog.groups, quotas, candidates, strict=True):
        by_length = sorted(numbers, key=lambda number: (lengths[number], number))
        for number in _spread(by_length, quota):
            sampled += range(number, number + together)
        images_left = group.images - quota * together
        if images_left:
            rest.append(replace(group, images=images_left))
    return PlanSample(np.array(sampled, np.int64), tuple(rest))


def _divide_sample(group_images: Sequence[int], images: int) -> list[int]:
    """Divide a sample of `images` images among the groups.

    The largest groups get one image each. Each further image goes to the most underrepresented
    group.
    """
    units = (
        (size / (number + 1) if number else math.inf, size, -index)
        for index, size in enumerate(group_images)
        for number in range(min(size, images))
    )
    chosen = Counter(-index for _, _, index in heapq.nlargest(images, units))
    return [chosen[index] for index in range(len(group_images))]


def _candidates_by_group(catalog: Catalog, quotas: Sequence[int]) -> list[list[int]]:
    """Fetch numbers of random images of each group, CANDIDATES_PER_IMAGE per sampled image."""
    most = CANDIDATES_PER_IMAGE * max(1, *quotas)
    groups = catalog.database.fetch_table(
        f"""
        SELECT arg_min(number, {IMAGE_HASH}, {most}) AS numbers
        FROM planned_images
        WHERE number = {candidate_group(catalog.candidates)}
        GROUP BY {SHAPE}
        ORDER BY min(number)
        """
    )
    numbers_by_group = groups["numbers"].to_pylist()
    pairs = zip(quotas, numbers_by_group, strict=True)
    return [numbers[: CANDIDATES_PER_IMAGE * quota] for quota, numbers in pairs]


def _read_prompt_lengths(catalog: Catalog, candidates: Sequence[Sequence[int]]) -> dict[int, int]:
    numbers = np.array(sorted(chain.from_iterable(candidates)), np.int64)
    lengths: dict[int, int] = {}
    for batch in catalog.iter_columns(["number", "prompt"], numbers):
        characters = pc.utf8_length(batch["prompt"])
        lengths |= zip(batch["number"].to_pylist(), characters.to_pylist(), strict=True)
    return lengths


def _spread(by_length: Sequence[int], quota: int) -> list[int]:
    """Choose `quota` numbers, evenly spread by prompt length. Returns them in row order."""
    last = len(by_length) - 1
    positions = np.linspace(0, last, quota).round() if quota > 1 else [len(by_length) // 2][:quota]
    return sorted(by_length[int(position)] for position in positions)


def read_sample(catalog: Catalog, sample: PlanSample) -> pa.Table:
    """Read the image rows of a sample, in generation order."""
    numbers = np.sort(sample.numbers)
    columns = [*IMAGE_ROW_SCHEMA.names, *catalog.passthrough]
    rows = pa.Table.from_batches(catalog.iter_columns(columns, numbers))
    order = np.searchsorted(numbers, sample.numbers)
    return rows.take(pa.array(order))
