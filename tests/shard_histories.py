"""Random shards: rows of any settings, in which calls fail, memory runs out and pods are killed.

What is promised: an image has the bytes that a new denoiser gives its row alone, in a batch of the
same size. That is the planned size, halved while memory does not suffice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.recovery import BatchRecovery
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runtime.signals import Stopped
from tests.histories import (
    LORA_SETS,
    Outcome,
    PlannedModel,
    input_image_settings,
    outcome,
    side_of,
)

SAMPLERS = ("default", "euler_a", "heun", "dpmpp_sde", "unipc", "flow_euler")
PROMPTS = ("a red circle", "a blue square on yellow", "two green triangles", "a star")
FAULTS: Mapping[str, BaseException] = {
    "memory runs out": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "the call fails": RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    "the pod is stopped": Stopped(),
}


class Batch(NamedTuple):
    """Rows of one shape to draw at once, and what happens to the pod.

    `fault` is raised after the step of the first call that draws the rows. With `restart`, a new
    pod draws them.
    """

    rows: list[ImageRow]
    fault: str | None
    step: int
    restart: bool


class Pod:
    """A denoiser with its recovery, in which one fault may be due."""

    def __init__(self, model: PlannedModel, planned_size: int) -> None:
        """Load the model."""
        self.sizes: dict[int, int] = {}  # of the batch that each row was drawn in, by its index
        self._denoiser = model.new_denoiser()
        self._recovery = BatchRecovery(self._draw_once, lambda _: planned_size)
        self._fault: BaseException | None = None
        self._steps_to_fault = 0

    def draw(self, batch: Batch) -> Iterator[DrawnImage]:
        """The images of a batch. Raises Stopped and TryAgain."""
        self._fault = FAULTS[batch.fault] if batch.fault else None
        self._steps_to_fault = batch.step
        for images in self._recovery.draw_batches(batch.rows):
            yield from images

    def _draw_once(self, rows: Sequence[ImageRow], size: int) -> Sequence[DrawnImage]:
        images = self._denoiser.draw(rows, size, self._after_step)
        self._fault = None
        self.sizes |= {row.index_in_part: size for row in rows}
        return images

    def _after_step(self) -> None:
        self._steps_to_fault -= 1
        if self._fault is not None and self._steps_to_fault == 0:
            fault = self._fault
            self._fault = None
            raise fault


class Oracle:
    """What each row becomes in a new denoiser, alone in a batch of a size."""

    def __init__(self, model: PlannedModel) -> None:
        """Take the model."""
        self._model = model
        self._outcomes: dict[object, Outcome] = {}

    def outcome_alone(self, row: ImageRow, size: int) -> Outcome:
        """The row's pixels, or its error."""
        key = (row.parameters, size)
        if key not in self._outcomes:
            draw = partial(self._model.new_denoiser().draw, check=lambda: None)
            (image,) = BatchRecovery(draw, lambda _: size).draw_prefix([row])
            self._outcomes[key] = outcome(image)
        return self._outcomes[key]


def check_random_histories(model: PlannedModel, examples: int) -> None:
    """Draw random shards, the same ones every time, and compare each image with it alone."""
    oracle = Oracle(model)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        batches=st.lists(_batches(model), min_size=2, max_size=5), size=st.sampled_from((1, 2, 4))
    )
    def check(batches: list[Batch], size: int) -> None:
        _check_shard(model, oracle, batches, size)

    check()


def _check_shard(model: PlannedModel, oracle: Oracle, batches: Sequence[Batch], size: int) -> None:
    pod = Pod(model, size)
    for number, batch in enumerate(batches):
        if batch.restart:
            pod = Pod(model, size)
        try:
            images = list(pod.draw(batch))
        except (Stopped, TryAgain):  # the next pod makes the part from its beginning
            pod = Pod(model, size)
            images = list(pod.draw(batch._replace(fault=None)))

        for row, image in zip(batch.rows, images, strict=True):
            if image.error is not None and batch.fault is not None:
                continue  # a row that fails alone, which `retry` makes again
            alone = oracle.outcome_alone(row, pod.sizes.get(row.index_in_part, size))
            assert outcome(image) == alone, f"image {row.index_in_part} of batch {number}"


def _batches(model: PlannedModel) -> st.SearchStrategy[Batch]:
    return st.builds(
        Batch,
        rows=_rows_of_one_shape(model),
        fault=st.sampled_from([None, *FAULTS]),
        step=st.integers(1, 2),
        restart=st.sampled_from([False, False, True]),
    )


def _rows_of_one_shape(model: PlannedModel) -> st.SearchStrategy[list[ImageRow]]:
    side = side_of(model.kind)
    sizes: list[dict[str, object]] = [
        {"width": side, "height": side},
        {"width": 2 * side, "height": side},
    ]
    shapes = st.builds(
        lambda size, images, **others: others | size | images,
        size=st.sampled_from(sizes),
        images=st.sampled_from(input_image_settings(model)),
        sampler=st.sampled_from(SAMPLERS),
        loras=st.sampled_from(LORA_SETS if model.plan.loras else (None,)),
        guidance=st.sampled_from((0.0, 3.0)),
        steps=st.integers(2, 3),
    )
    counts = st.integers(1, 3)
    return st.builds(partial(_make_rows, model), shapes, counts)


def _make_rows(model: PlannedModel, shape: Mapping[str, object], count: int) -> list[ImageRow]:
    return [
        replace(model.row(**shape, prompt=PROMPTS[index], seed=index), index_in_part=index)
        for index in range(count)
    ]
