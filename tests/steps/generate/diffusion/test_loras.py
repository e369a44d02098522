"""LoRAs of a pipeline: each loaded once, and in force only where a row asks for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.models.loras import load_lora_facts
from imagekiln.steps.runs.image import ImageRow
from tests import loras, models, runs
from tests.drawing import pixels_of
from tests.faults import manifests
from tests.models import DIFFUSERS_WARNS, SIDE, Kind, Untyped
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(DIFFUSERS_WARNS)
KINDS: list[Kind] = ["sd", "sdxl", "sd3", "flux"]
Rgb: TypeAlias = "np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]"
BOTH = "detail:-0.5,style:0.8"


def _layers(pipe: Untyped, **files: Path) -> LoraLayers:
    wanted = {name: LoraSettings(id=str(file)) for name, file in files.items()}
    return LoraLayers(
        pipe, wanted, load_lora_facts(ModelSettings(id="bundled:shapes", loras=wanted))
    )


def _denoiser(kind: Kind, pipe: Untyped = None) -> Denoiser:
    pipe = pipe or models.pipe(kind)
    return Denoiser(
        pipe,
        loras=_layers(pipe, style=loras.folder(kind, 1, text=True), detail=loras.folder(kind, 2)),
    )


def _rows(count: int, wanted: str | None) -> list[ImageRow]:
    texts = ("a red circle", "two green triangles", "a blue square", "a star")
    return [
        image_row(text, place, negative_prompt="large", loras=wanted)
        for place, text in enumerate(texts[:count])
    ]


def _diffusers(pipe: Untyped, rows: Sequence[ImageRow]) -> Untyped:
    negative = (
        {} if "flux" in type(pipe).__name__.lower() else {"negative_prompt": ["large"] * len(rows)}
    )
    drawn = pipe(
        prompt=[row.parameters.prompt for row in rows],
        generator=[torch.Generator("cpu").manual_seed(row.parameters.seed) for row in rows],
        width=SIDE,
        height=SIDE,
        num_inference_steps=2,
        guidance_scale=3.0,
        output_type="pil",
        **negative,
    )
    return [np.asarray(image) for image in drawn.images]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_images_are_those_of_diffusers_own_call_with_the_same_loras(kind: Kind) -> None:
    pipe = models.pipe(kind)
    loras.load(pipe, loras.folder(kind, 1, text=True), "a")
    loras.load(pipe, loras.folder(kind, 2), "b")
    own: dict[str | None, list[Rgb]] = {}
    for wanted, adapters, weights in (("style:0.8", ["a"], [0.8]), (BOTH, ["a", "b"], [0.8, -0.5])):
        pipe.set_adapters(adapters, weights)
        own[wanted] = _diffusers(pipe, _rows(2, wanted))
    pipe.disable_lora()
    own[None] = _diffusers(pipe, _rows(2, None))
    denoiser = _denoiser(kind)
    for text, images in own.items():
        drawn = np.array(pixels_of(denoiser, _rows(2, text), 2), np.int16)
        # LoRAs are added in the order of their hashes, and sums of floats depend on the order.
        assert np.abs(drawn - np.array(images, np.int16)).max() <= (text == BOTH), text
    assert len({image[0].tobytes() for image in own.values()}) == len(own)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("kind", "size"), [("sd", 2), ("sdxl", 4), ("sd3", 2), ("flux", 4)])
def test_an_image_depends_on_neither_its_place_nor_the_loras_before_it(
    kind: Kind, size: int
) -> None:
    denoiser = _denoiser(kind)
    first = {
        wanted: pixels_of(denoiser, _rows(1, wanted), size)[0]
        for wanted in (None, "style:0.8", BOTH)
    }
    plain = Denoiser(models.pipe(kind))
    assert np.array_equal(pixels_of(plain, _rows(1, None), size)[0], first[None])
    for wanted in (BOTH, None, "style:0.8", None, BOTH):
        rows = _rows(size, wanted)
        assert np.array_equal(pixels_of(denoiser, rows, size)[0], first[wanted])
        assert np.array_equal(pixels_of(denoiser, rows[::-1], size)[-1], first[wanted])


def _settings(kind: Kind) -> dict[str, object]:
    files = {"style": loras.folder(kind, 1, text=True), "detail": loras.folder(kind, 2)}
    model = {"id": str(models.folder(kind)), "dtype": "float32"}
    defaults = {"steps": 2, "guidance": 3.0, "width": SIDE, "height": SIDE}
    return {
        "model": {**model, "loras": {name: {"id": str(file)} for name, file in files.items()}},
        "defaults": defaults,
    }


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "kind",
    ["sd", "flux", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sdxl", "sd3"))],
)
def test_a_whole_job_runs_with_rows_of_none_one_and_two_loras(kind: Kind, tmp_path: Path) -> None:
    asked = (None, "style:0.8", "detail:-0.5, style:0.80", "style: 0", "")
    rows = [
        {"prompt": "a red circle", "seed": 5, "id": f"{place}", "loras": text}
        for place, text in enumerate(asked)
    ]
    prompts = runs.write_prompts(tmp_path / "prompts.parquet", rows)
    pixels = []
    for size, order in (
        (2, prompts),
        (4, runs.write_prompts(tmp_path / "turned.parquet", rows[::-1])),
    ):
        done = run(
            runs.job(
                order, str(tmp_path / f"out-{size}"), batch={"images": size}, **_settings(kind)
            )
        )
        assert (done.summary.ok, done.summary.duplicate_images) == (
            3,
            2,
        )  # weight 0 is no LoRA, and so is no text
        assert verify(done.uri).ok == 3
        found = manifests(done.uri)
        pixels.append({row["loras"]: (row["image_id"], row["pixels_sha256"]) for row in found})
    assert pixels[0].keys() == {None, "style:0.8", BOTH}
    assert len({sha256 for _, sha256 in pixels[0].values()}) == 3
    assert {name: each for name, (each, _) in pixels[0].items()} == {
        name: each for name, (each, _) in pixels[1].items()
    }


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("kind", "other"), [("sd", "sdxl"), ("sdxl", "sd"), ("sd3", "flux"), ("sd", "flux")]
)
def test_a_lora_of_another_model_is_refused_in_a_sentence(kind: Kind, other: Kind) -> None:
    pipe = models.pipe(kind)
    denoiser = Denoiser(pipe, loras=_layers(pipe, style=loras.folder(other, 1, text=True)))
    with pytest.raises(
        BadInput,
        match=r"^model\.loras\.style: is a LoRA that does not fit the model \([^\n]+\)\. Choose",
    ) as told:
        pixels_of(denoiser, _rows(1, "style:1"), 1)
    assert "\n" not in str(told.value)


def test_a_file_that_changed_since_planning_is_refused(tmp_path: Path) -> None:
    file, pipe = tmp_path / "style.safetensors", models.pipe("sd")
    file.write_bytes((loras.folder("sd", 1) / loras.FILE).read_bytes())
    denoiser = Denoiser(pipe, loras=_layers(pipe, style=file))
    file.write_bytes((loras.folder("sd", 2) / loras.FILE).read_bytes())
    with pytest.raises(BadInput, match=r"style\.safetensors is not what the run was planned with"):
        pixels_of(denoiser, _rows(1, "style:1"), 1)
