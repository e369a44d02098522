"""The safety checker of a model: its verdicts are those of the pipeline's own call."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.runs.image import ImageRow
from tests import families, models
from tests.drawing import pixels_of
from tests.models import SIDE
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

REFUSED = "the model's safety checker refused it"
MAKE: dict[str, Callable[[], models.Untyped]] = {
    "sd": lambda: models.pipe("sd"),
    "lcm": lambda: families.pipe("lcm"),
}


class BrightnessChecker(torch.nn.Module):
    """A safety checker that refuses what is brighter than most, and blackens it as the real one."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, limit: float = 0.0) -> None:
        super().__init__()
        self.limit = limit
        self.inputs: list[torch.Tensor] = []

    def forward(
        self, clip_input: torch.Tensor, images: models.Untyped
    ) -> tuple[models.Untyped, list[bool]]:
        self.inputs.append(clip_input)
        refused = [bool(value > self.limit) for value in clip_input.mean((1, 2, 3))]
        for place, bad in enumerate(refused):
            if bad:
                images[place] = images[place] * 0
        return images, refused


def _with_checker(pipe: models.Untyped, checker: torch.nn.Module) -> models.Untyped:
    extract = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    pipe.register_modules(safety_checker=checker, feature_extractor=extract)
    return pipe


def _rows(count: int = 4, **settings: object) -> list[ImageRow]:
    return [image_row("a red circle", place, seed=place, **settings) for place in range(count)]


@pytest.mark.parametrize("kind", MAKE)
def test_verdicts_are_those_of_the_pipelines_own_call(kind: str) -> None:
    rows = _rows()
    whole = pixels_of(Denoiser(MAKE[kind]()), rows, 4)
    theirs = BrightnessChecker()
    first = rows[0].parameters
    output = _with_checker(MAKE[kind](), theirs)(
        [row.parameters.prompt for row in rows],
        generator=[torch.Generator("cpu").manual_seed(row.parameters.seed) for row in rows],
        width=first.width,
        height=first.height,
        num_inference_steps=first.steps,
        guidance_scale=first.guidance,
    )
    ours = BrightnessChecker()
    drawn = Denoiser(_with_checker(MAKE[kind](), ours)).draw(rows, 4, lambda: None)
    assert torch.equal(ours.inputs[0], theirs.inputs[0])
    refused = [image.status == "filtered" for image in drawn]
    assert refused == output.nsfw_content_detected
    assert [image.error for image in drawn] == [REFUSED if bad else None for bad in refused]
    for image, pixels in zip(drawn, whole, strict=True):
        assert image.rgb is None or np.array_equal(image.rgb, pixels)


def test_one_image_is_refused_and_its_neighbours_keep_their_pixels() -> None:
    rows = _rows()
    pipe = models.pipe("sd")
    whole = pixels_of(Denoiser(pipe), rows, 4)
    checker = BrightnessChecker(limit=np.inf)
    denoiser = Denoiser(_with_checker(pipe, checker))
    assert [image.status for image in denoiser.draw(rows, 4, lambda: None)] == ["ok"] * 4
    values = checker.inputs[0].mean((1, 2, 3))
    checker.limit = float(values.sort().values[-2:].mean())
    brightest = int(values.argmax())
    drawn = denoiser.draw(rows, 4, lambda: None)
    assert [place for place in range(4) if drawn[place].status == "filtered"] == [brightest]
    assert (drawn[brightest].rgb, drawn[brightest].error) == (None, REFUSED)
    for place in {*range(4)} - {brightest}:
        assert np.array_equal(drawn[place].rgb, whole[place])


def test_images_that_a_pass_draws_over_are_checked_too() -> None:
    rows = _rows(2, strength=0.5, source_image="own", steps=4)
    own = {place: Pillow.new("RGB", (SIDE, SIDE), "gray") for place in range(2)}
    checker = BrightnessChecker(limit=-np.inf)
    denoiser = Denoiser(_with_checker(models.pipe("sd"), checker))
    drawn = denoiser.draw_over(rows, own, 2, lambda: None)
    assert [(image.status, image.error) for image in drawn] == [("filtered", REFUSED)] * 2
    assert len(checker.inputs) == 1


def test_an_image_without_a_verdict_is_not_ok() -> None:
    class Picky(BrightnessChecker):
        def forward(
            self, clip_input: torch.Tensor, images: models.Untyped
        ) -> tuple[models.Untyped, list[bool]]:
            if len(self.inputs) == 1:
                raise ValueError("cannot see")
            return super().forward(clip_input, images)

    denoiser = Denoiser(_with_checker(models.pipe("sd"), Picky(limit=np.inf)))
    assert denoiser.draw(_rows(1), 1, lambda: None)[0].status == "ok"
    (image,) = denoiser.draw(_rows(1), 1, lambda: None)
    assert (image.status, image.rgb) == ("failed", None)
    assert image.error is not None
    assert "ValueError: cannot see" in image.error
