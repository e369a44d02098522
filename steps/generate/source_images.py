"""Images of another run in place of generated ones, in runs without a model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from PIL import Image as Pillow

from imagekiln.steps.generate.diffusion.adapters import ImageRequest, InputImageReader
from imagekiln.steps.generate.diffusion.denoiser import Denoiser, load_denoiser
from imagekiln.steps.generate.diffusion.device import finish_device_work
from imagekiln.steps.generate.diffusion.pipeline import decide_placement, open_device
from imagekiln.steps.job.execution import Placement
from imagekiln.steps.models.facts import WeightsCheck
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS, DrawnImage, ImageRow
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.storage.store import Store


class SourceImages(Denoiser):
    """Reads the input image of each row in place of generating it. Has no pipeline."""

    compile_mode: Literal["none"] = "none"
    decode_mode: Literal["whole"] = "whole"
    one_at_a_time = None

    def __init__(
        self, store: Store, device: torch.device, placement: Placement = "resident"
    ) -> None:
        """Take the store of the run, and the device and the placement of its scorers and passes."""
        self.device = device
        self._placement: Placement = placement
        self.scorers = {}
        self.passes = None
        self._images = InputImageReader(store)

    @property
    def placement(self) -> Placement:
        """Where the weights of passes are kept."""
        return self._placement

    def draw_over(
        self,
        rows: Sequence[ImageRow],
        _: Mapping[int, Pillow.Image] | None,
        __: int,
        check: Callable[[], None],
    ) -> Sequence[DrawnImage]:
        """Read the images of these rows. `check` may raise to cancel."""
        check()
        images = []
        for row in rows:
            image = self._images.get(_source_request(row))
            planned = (row.parameters.width, row.parameters.height)
            if image.size != planned:
                raise ValueError(f"the image has {image.size} pixels, planned are {planned}")
            images.append(DrawnImage(row.index_in_part, np.asarray(image)))
        return images

    def set_upcoming(self, rows: Sequence[ImageRow]) -> None:
        """Begin to read the images after the next batch."""
        self._images.prefetch(rows)

    def finish_texts(self) -> None:
        """Do nothing, since no prompts are encoded."""

    def load_loras(self, names: Iterable[str]) -> None:
        """Do nothing, since there are no LoRAs."""

    def pop_times(self) -> StageSeconds:
        """Return no times, since the device does nothing."""
        return StageSeconds()

    def close(self) -> None:
        """Stop the threads, including the passes'."""
        if self.passes is not None:
            self.passes.close()
        self._images.close()
        finish_device_work(self.device)


def load_image_source(plan: Plan, store: Store, weights: WeightsCheck | None = None) -> Denoiser:
    """Load the denoiser of a plan, or the reader of its source images. Raises as `load_denoiser`.

    Without passes and scores, the latter needs no device.
    """
    job = plan.job
    if job.draws:
        return load_denoiser(plan, store, weights)
    if not (job.passes or job.scores):
        return SourceImages(store, torch.device("cpu"))
    return SourceImages(store, open_device(plan), decide_placement(plan))


def _source_request(row: ImageRow) -> ImageRequest:
    values = (getattr(row.parameters, column) for column in INPUT_IMAGE_COLUMNS)
    return ImageRequest(next(filter(None, values)), grayscale=False, size=None)
