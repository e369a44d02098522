"""Passes with a diffusion model of their own: neither model leaves a trace in the other."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.denoiser import Denoiser, load_denoiser
from imagekiln.steps.generate.passes import pass_seed
from imagekiln.steps.generate.step import LazyDenoiser
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.plan import iter_pass_plans
from imagekiln.steps.storage import open_store
from tests.models import DIFFUSERS_WARNS, Untyped, folder
from tests.refiners import refiner_folder
from tests.runs import image_row, picture, planned

pytestmark = pytest.mark.filterwarnings(DIFFUSERS_WARNS)
OTHER = {"id": str(folder("sdxl")), "dtype": "float32"}
REFINER = {"id": str(refiner_folder()), "dtype": "float32"}
DETAIL: dict[str, object] = {"kind": "refine", "strength": 0.5, "steps": 4}
PASSES = {
    "other": {**DETAIL, "model": OTHER},
    "own": DETAIL,
    "last": {**DETAIL, "scale": 1.5, "model": REFINER},
}
COUNT = 3
PICTURES = [picture(place) for place in range(COUNT)]
# Settings by which a scheduler or a cache of one batch could change the next one.
SETTINGS: Sequence[dict[str, object]] = (
    {},
    {"sampler": "dpmpp_sde", "steps": 5},
    {"negative_prompt": "blurred", "guidance": 6.0, "sampler": "dpmpp_2m_karras"},
)
EACH_AFTER_EACH = (0, 1, 2, 0, 2, 1, 0)


def rows_of(**settings: object) -> list[ImageRow]:
    """Rows with these settings, each with a text of its own."""
    return [image_row(f"a red circle {'ab' * place}", place, **settings) for place in range(COUNT)]


def pixels(images: Sequence[DrawnImage]) -> list[bytes]:
    """The pixels of images that are ok."""
    assert [image.status for image in images] == ["ok"] * len(images)
    return [image.rgb.tobytes() for image in images if image.rgb is not None]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> PlanResult:
    """A plan whose passes draw with another model, with the job's own, and with a refiner."""
    scratch = tmp_path_factory.mktemp("plan")
    return planned(scratch, str(scratch / "out"), [{"prompt": "x"}], passes=PASSES)


@pytest.fixture(scope="module")
def denoiser(plan: PlanResult) -> Untyped:
    """The job's own model, with the passes and their models."""
    with closing(LazyDenoiser(open_store(plan.uri), plan.plan)) as open_denoiser:
        yield open_denoiser()


@pytest.fixture
def run_passes(denoiser: Denoiser) -> Callable[..., list[bytes]]:
    """Runs all passes over pictures, and returns their pixels."""

    def run(images: Sequence[DrawnImage], rows: Sequence[ImageRow]) -> list[bytes]:
        assert denoiser.passes is not None
        return pixels(denoiser.passes(images, rows, lambda: None).images)

    return run


@pytest.mark.slow
def test_an_image_is_the_same_whatever_was_drawn_before(
    run_passes: Callable[..., list[bytes]], denoiser: Denoiser
) -> None:
    """Batches of each settings after those of each other, and the job's own model between them."""
    batches = [rows_of(**settings) for settings in SETTINGS]
    drawn = [pixels(denoiser.draw(rows, 4, lambda: None)) for rows in batches]
    passed = [run_passes(PICTURES, rows) for rows in batches]
    for number in EACH_AFTER_EACH:
        assert pixels(denoiser.draw(batches[number], 4, lambda: None)) == drawn[number]
        assert run_passes(PICTURES, batches[number]) == passed[number]
    assert len({tuple(images) for images in passed}) == len(SETTINGS)


def test_a_pass_draws_as_its_model_does_alone(plan: PlanResult) -> None:
    """The model of a pass, loaded by itself, draws the same bytes over the same image."""
    store = open_store(plan.uri)
    (image,) = PICTURES[:1]
    assert image.rgb is not None
    # The guidance is that of the pass's model, as its pipeline has it by default.
    settings: dict[str, object] = {
        "strength": 0.5,
        "steps": 4,
        "guidance": 5.0,
        "source_image": "any",
    }
    row = image_row("a red circle", 0, **settings, seed=pass_seed(0, 0))
    only_other = planned(
        Path(plan.uri).parents[1] / "only",
        str(Path(plan.uri).parent),
        [{"prompt": "x"}],
        passes={"other": PASSES["other"]},
    )
    with closing(LazyDenoiser(store, only_other.plan)) as open_denoiser:
        run = open_denoiser().passes
        assert run is not None
        (refined,) = run([image], [image_row()], lambda: None).images
    [(name, pass_plan)] = iter_pass_plans(only_other.plan)
    assert (name, pass_plan.model.pipeline) == ("other", "StableDiffusionXLPipeline")
    with closing(load_denoiser(pass_plan, store)) as alone:
        (drawn,) = alone.draw_over([row], {0: Pillow.fromarray(image.rgb)}, 4, lambda: None)
    assert np.array_equal(drawn.rgb, refined.rgb)  # type: ignore[arg-type]  # both drawn


def test_a_model_that_was_changed_since_planning_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder("sdxl"), copy)
    changed = {"other": {**DETAIL, "model": {"id": str(copy), "dtype": "float32"}}}
    result = planned(tmp_path, str(tmp_path / "out"), [{"prompt": "x"}], passes=changed)
    weights = copy / "vae" / "diffusion_pytorch_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    denoiser = LazyDenoiser(open_store(result.uri), result.plan)
    with pytest.raises(BadInput, match=r"passes\.other: .* is not the model that the run") as error:
        denoiser()
    assert error.value.exit_code == 2
