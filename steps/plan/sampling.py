"""A stratified sample of a plan's images: what a preview shows, and what a canary tries.

It has images of each shape, or of the most frequent ones, as many as fit their shares, and of each
shape short and long prompts. Of two images alike, the hash of the image decides.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.plan.catalog import Catalog, ImageGroup
from imagekiln.steps.plan.image_sql import SHAPE_COLUMNS

CANDIDATES_PER_IMAGE = 8  # whose prompts are looked at, at random
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlanSample:
    """Numbers of images in the order in which they are made, and the groups without these."""

    numbers: Int64Array
    rest: tuple[ImageGroup, ...]


def choose_sample(catalog: Catalog, images: int) -> PlanSample:
    """A sample of so many images, or of all where there are no more."""
    quotas = divide_sample([group.images for group in catalog.groups], images)
    lengths = _prompt_lengths(catalog, quotas)
    chosen: list[Int64Array] = []
    rest: list[ImageGroup] = []
    for group, quota, candidates in zip(catalog.groups, quotas, lengths, strict=True):
        chosen.append(_spread_by_length(candidates, quota))
        if group.images > quota:
            rest.append(replace(group, images=group.images - quota))
    return PlanSample(np.concatenate([np.empty(0, np.int64), *chosen]), tuple(rest))


def divide_sample(group_images: Sequence[int], images: int) -> list[int]:
    """How many images of each group a sample has.

    One of each, of the largest ones first; then each further image is of the group that lacks most
    of its share.
    """
    quotas = [0] * len(group_images)
    largest_first = sorted(range(len(group_images)), key=lambda index: -group_images[index])
    for index in largest_first[:images]:
        quotas[index] = 1

    waiting = [(-group_images[index] / 2, index) for index in largest_first[:images]]
    heapq.heapify(waiting)
    for _ in range(images - sum(quotas)):
        while waiting and quotas[waiting[0][1]] == group_images[waiting[0][1]]:
            heapq.heappop(waiting)
        if not waiting:
            break
        _, index = waiting[0]
        quotas[index] += 1
        heapq.heapreplace(waiting, (-group_images[index] / (quotas[index] + 1), index))
    return quotas


def _prompt_lengths(catalog: Catalog, quotas: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Candidates of each group: the length of the prompt, and the number of the image."""
    most = CANDIDATES_PER_IMAGE * max(quotas, default=0)
    columns = ", ".join(SHAPE_COLUMNS)
    groups = catalog.database.fetch_table(f"""
        SELECT arg_min(number, image_hash, {max(1, most)}) AS numbers
        FROM planned_images GROUP BY {columns} ORDER BY min(number)""")
    numbers_by_group = groups["numbers"].to_pylist()
    candidates = [
        numbers[: CANDIDATES_PER_IMAGE * quota]
        for numbers, quota in zip(numbers_by_group, quotas, strict=True)
    ]
    lengths = _read_lengths(catalog, [number for numbers in candidates for number in numbers])
    for numbers in candidates:
        yield [(lengths[number], number) for number in numbers]


def _read_lengths(catalog: Catalog, numbers: list[int]) -> dict[int, int]:
    """The length of the prompt of each of these images, in characters."""
    lengths: dict[int, int] = {}
    for batch in catalog.iter_columns(["number", "prompt"], np.array(sorted(numbers), np.int64)):
        characters = pc.utf8_length(batch["prompt"])
        lengths |= zip(batch["number"].to_pylist(), characters.to_pylist(), strict=True)
    return lengths


def _spread_by_length(candidates: list[tuple[int, int]], quota: int) -> Int64Array:
    """So many of the candidates, from the shortest prompt to the longest, in the order of rows."""
    by_length = sorted(candidates)
    positions = np.linspace(0, len(by_length) - 1, quota).round().astype(int)
    if quota == 1:
        positions = np.array([len(by_length) // 2])
    return np.array(sorted(by_length[position][1] for position in positions), np.int64)


def read_sample(catalog: Catalog, sample: PlanSample) -> pa.Table:
    """The rows of the sample, in its order."""
    numbers = np.sort(sample.numbers)
    rows = pa.Table.from_batches(catalog.iter_sampled(numbers))
    order = pc.index_in(pa.array(sample.numbers), pa.array(numbers))
    return rows.take(order)
