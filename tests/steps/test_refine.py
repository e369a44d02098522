"""A refiner draws the last steps: as diffusers' own two calls do, whoever the neighbours are."""

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from imagekiln.steps import model, names, parameters, plan, refine, tables
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.errors import BadInput
from imagekiln.steps.fetch import fetch
from imagekiln.steps.opening import opened
from imagekiln.steps.pipeline import load, scheduler
from imagekiln.steps.planning import Planned
from imagekiln.steps.progress import Silent
from imagekiln.steps.refine import Refiner
from imagekiln.steps.reproduce import reproduce
from imagekiln.steps.rows import ImageRow
from imagekiln.steps.run import run
from imagekiln.steps.stop import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.verify import verify
from tests import families, models, refiners, runs
from tests.drawing import pixels_of
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

RGB = npt.NDArray[np.uint8]
START = 0.6


def _rows(count: int, **settings: object) -> list[ImageRow]:
    plain = {"steps": 5, "negative_prompt": "a yellow star"}
    return [image_row(f"a red circle {place}", place, **plain | settings) for place in range(count)]


def _denoiser(start: float = START) -> Denoiser:
    return Denoiser(models.pipe("sdxl"), refiner=Refiner(refiners.pipe(), start))


def _diffusers(row: ImageRow, start: float = START) -> RGB:
    """The image by diffusers' own two calls on the text, as its guide to the refiner has them."""
    base, second, pixels = models.pipe("sdxl"), refiners.pipe(), row.pixels
    base.scheduler = scheduler(base, pixels.sampler)
    second.scheduler = scheduler(second, pixels.sampler)
    asked = {
        "prompt": pixels.prompt,
        "negative_prompt": pixels.negative_prompt,
        "num_inference_steps": pixels.steps,
        "guidance_scale": pixels.guidance,
        "generator": [torch.Generator("cpu").manual_seed(pixels.seed)],
    }
    size = {"width": pixels.width, "height": pixels.height}
    begun = base(**asked, **size, denoising_end=start, output_type="latent").images
    return np.asarray(second(**asked, image=begun, denoising_start=start).images[0])


@pytest.mark.parametrize("guidance", [1.0, 7.5])
@pytest.mark.parametrize("start", [0.3, 0.6, 0.8])
def test_an_image_is_that_of_diffusers_own_two_calls(start: float, guidance: float) -> None:
    (row,) = _rows(1, guidance=guidance)
    ours = pixels_of(_denoiser(start), [row], 1)[0]
    assert np.array_equal(ours, _diffusers(row, start))
    assert not np.array_equal(ours, pixels_of(Denoiser(models.pipe("sdxl")), [row], 1)[0])


@pytest.mark.parametrize("sampler", ["ddim", "dpmpp_2m_karras", "dpmpp_sde", "euler_a", "heun", "lcm", "unipc"])
def test_a_row_s_sampler_draws_on_from_its_own_noise_levels(sampler: str) -> None:
    (row,) = _rows(1, sampler=sampler)
    assert np.array_equal(pixels_of(_denoiser(), [row], 1)[0], _diffusers(row))


@pytest.mark.parametrize("sampler", ["default", "euler_a"])
@pytest.mark.parametrize(("size", "wide"), [(2, 1), (4, 2)])
def test_an_image_depends_on_neither_its_place_nor_its_neighbours(size: int, wide: int, sampler: str) -> None:
    denoiser = _denoiser()
    first, *others = _rows(size, width=16 * wide, sampler=sampler)
    alone = pixels_of(denoiser, [first], size)[0]
    assert alone.std() > 1
    assert np.array_equal(pixels_of(denoiser, [first, *others], size)[0], alone)
    assert np.array_equal(pixels_of(denoiser, [*others, first], size)[-1], alone)


def test_both_models_together_take_the_steps_and_whoever_wants_to_stop_is_asked_after_each() -> None:
    asked = []
    _denoiser().draw(_rows(2, steps=10), 2, lambda: asked.append(1))
    assert len(asked) == 10


def test_few_steps_that_leave_the_refiner_nothing_are_drawn_by_the_model_alone() -> None:
    rows = _rows(2, steps=1)
    assert all(np.isfinite(each).all() for each in pixels_of(_denoiser(), rows, 2))


def _settings(**refiner: object) -> dict[str, object]:
    return {
        "id": str(families.folder("sdxl")),
        "dtype": "float32",
        "refiner": {"id": str(refiners.folder()), **refiner},
    }


def _planned(tmp_path: Path, **changes: object) -> Planned:
    settings = {"model": _settings(), **changes}
    return runs.planned(tmp_path, str(tmp_path / "out"), runs.PROMPTS[:4], **settings)


def test_what_both_have_in_common_is_in_memory_once(tmp_path: Path) -> None:
    there = _planned(tmp_path).plan
    base = load(there)
    loaded = refine.load(there, base)
    assert loaded is not None
    assert loaded.pipe.vae is base.vae
    assert loaded.pipe.text_encoder_2 is base.text_encoder_2
    assert not any(each.training for each in loaded.pipe.unet.modules())


def test_a_vae_of_its_own_stays_the_refiner_s(tmp_path: Path) -> None:
    own = {**_settings(), "refiner": {"id": str(refiners.folder(own_vae=True))}}
    there = _planned(tmp_path, model=own).plan
    base = load(there)
    loaded = refine.load(there, base)
    assert loaded is not None
    assert loaded.pipe.vae is not base.vae
    assert loaded.pipe.text_encoder_2 is base.text_encoder_2


def test_the_refiner_and_where_it_starts_are_in_every_image_s_id(tmp_path: Path) -> None:
    plain = {"id": str(families.folder("sdxl")), "dtype": "float32"}
    seen = [
        tables.read(open_store(_planned(tmp_path, model=each, run_id=f"r{place}").uri), names.shard(0))["image_id"]
        for place, each in enumerate([plain, _settings(), _settings(start=0.7)])
    ]
    assert len({image_id for each in seen for image_id in each.to_pylist()}) == 12


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"id": str(families.folder("sd"))}, r"is a StableDiffusionPipeline, and a refiner goes with a StableDif"),
        ({"refiner": {"id": str(families.folder("sdxl"))}}, r"is a StableDiffusionXLPipeline, and a refiner is a "),
        ({"refiner": {"id": "no/such"}}, r"model\.revision is missing: pin no/such to a commit"),
        ({"refiner": {"id": "a", "start": 1.0}}, r"refiner\.start"),
    ],
)  # fmt: skip
def test_what_cannot_refine_is_refused_at_planning(settings: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        _planned(tmp_path, model=_settings() | settings)


def test_guidance_that_ends_early_is_refused_beside_a_refiner(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"Remove it, or model\.refiner"):
        _planned(tmp_path, speed={"guidance_until": 0.5})


def test_a_refiner_whose_files_changed_since_planning_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "refiner"
    shutil.copytree(refiners.folder(), own)
    there = _planned(tmp_path, model=_settings(id=str(own)), run_id="refined")
    config = own / "unet/config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(BadInput, match=r"refiner: is not the model that the run was planned with"):
        opened(there.plan)
    with pytest.raises(BadInput, match=r"refiner: is not the model that the run was planned with"):
        fetch(there.uri)
    with pytest.raises(BadInput, match="was planned with other files"):
        _planned(tmp_path, model=_settings(id=str(own)), run_id="refined")


def test_a_whole_job_is_refined_and_made_again_to_the_byte(tmp_path: Path) -> None:
    prompts = runs.write_prompts(tmp_path / "prompts.parquet", runs.PROMPTS[:4])
    done = run(runs.job(prompts, str(tmp_path / "out"), model=_settings()), Silent(), Stop())
    assert (done.summary.ok, verify(done.uri).ok) == (4, 4)
    store = open_store(done.uri)
    row = tables.read(store, names.manifest(0)).to_pylist()[0]
    assert reproduce(done.uri, str(row["image_id"]), tmp_path / "again.png").equal == "bytes"
    frozen = plan.load(store)
    refiner = Path(str(refiners.folder()))
    said = parameters.text(image_row().pixels, parameters.of(frozen))
    assert f"Refiner: {refiner.name} [{str(frozen.model.refiner)[7:17]}], Refiner switch at: 0.8" in said
    assert f"; refiner ` {refiner.name} [" in store.read(names.CARD).decode()
    assert fetch(done.uri) == str(families.folder("sdxl"))
    assert model.digests(frozen.job.model) == frozen.model.digests
