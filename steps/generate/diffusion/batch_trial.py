"""A trial of a pipeline that no table knows: do rows in one call leave each other alone?"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from imagekiln.steps.errors import KilnError, first_line
from imagekiln.steps.generate.diffusion.device import is_device_lost, is_out_of_memory
from imagekiln.steps.models.families import CallSignature
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS, ImageRow
from imagekiln.steps.runtime.sanitize import sanitize_line

# Of different lengths: a pipeline that pads without a mask gives itself away.
TRIAL_PROMPTS = ("a red circle", "two green triangles above a blue square, in front of a wall")
TRIAL_STEPS = 2
TOLERANCE = 1e-4  # of the range of pixels
# In half precision, kernels round differently in each batch size. What that alone changes is
# measured with a row beside itself; a larger change is none of rounding.
ROUNDING_FACTOR = 2.0
MAX_ROUNDING = 0.01
# Pixels in [0, 1] of shape (rows, 3, height, width).
GeneratePixels = Callable[[Sequence[ImageRow]], torch.Tensor]
log = logging.getLogger(__name__)


def find_dependence(row: ImageRow, dtype: torch.dtype, generate: GeneratePixels) -> str | None:
    """Generate two rows of the shape of `row` alone and together, and compare the pixels.

    Returns why rows must be generated one at a time; None if they leave each other alone. A
    pipeline may also take no batch, or fail in one. Raises what `generate` raises of a lost device
    or a lack of memory.
    """
    try:
        reason = _find_difference(_trial_rows(row), generate, dtype)
    except KilnError:
        raise
    except Exception as error:
        if is_device_lost(error) or is_out_of_memory(error):
            raise
        reason = sanitize_line(first_line(str(error)) or type(error).__name__)
    if reason is not None:
        log.info("The pipeline generates images one at a time: %s.", reason)
    return reason


def _find_difference(
    rows: Sequence[ImageRow], generate: GeneratePixels, dtype: torch.dtype
) -> str | None:
    """Return how far rows change each other's pixels, if they do."""
    first, second = rows
    images = [generate([first]), generate([second])]
    alone = torch.cat(images)
    tolerance = TOLERANCE
    if dtype != torch.float32:
        beside_itself = generate([first, first])
        rounding = ROUNDING_FACTOR * _difference(beside_itself[0], alone[0])
        tolerance = max(TOLERANCE, min(MAX_ROUNDING, rounding))
    together = generate(rows)
    difference = max(map(_difference, together, alone))
    if difference <= tolerance:
        return None
    return f"rows in one call change each other's pixels by {difference:.2g} of their range"


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The mean difference of pixels; infinity if an image has numbers that are not finite."""
    difference = one.float() - other.float()
    mean = difference.abs().mean()
    return float(mean) if mean.isfinite() else math.inf


def trial_row(row: ImageRow, call: CallSignature) -> ImageRow:
    """The row of a trial: of the same shape, from text alone, in as few steps as possible."""
    parameters = row.parameters
    steps = min(TRIAL_STEPS, parameters.steps)
    if parameters.guidance is None and call.schedule_steps is not None:
        steps = parameters.steps
    names = (*INPUT_IMAGE_COLUMNS, "strength")
    without_images: dict[str, Any] = dict.fromkeys(names)
    parameters = replace(parameters, steps=steps, **without_images)
    return replace(row, parameters=parameters)


def _trial_rows(row: ImageRow) -> list[ImageRow]:
    rows = []
    for place, prompt in enumerate(TRIAL_PROMPTS):
        parameters = replace(row.parameters, prompt=prompt, seed=place)
        rows.append(replace(row, parameters=parameters))
    return rows
