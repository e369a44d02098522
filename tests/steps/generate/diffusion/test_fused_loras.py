"""LoRAs that all rows share: fused when the model is loaded, with the pictures of unfused ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.torch import load_file, save_file

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.loras import LoraLayers, fuse_loras
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.local import run
from imagekiln.steps.maintain.diff import SettingDifference, diff
from imagekiln.steps.models.loras import load_lora_facts
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.storage import open_store
from tests import families, loras, runs
from tests.drawing import pixels_of
from tests.faults import image, manifests
from tests.models import DIFFUSERS_WARNS, SIDE, Untyped

pytestmark = pytest.mark.filterwarnings(DIFFUSERS_WARNS)

BOTH = "detail:-0.5,style:0.8"
WITH_TEXT = {"sd", "sdxl", "flux"}  # whose text encoders take a LoRA
Files = dict[str, LoraSettings]


def _files(kind: str) -> Files:
    text = kind in WITH_TEXT
    folders = {"style": loras.folder(kind, 1, text=text), "detail": loras.folder(kind, 2)}
    return {name: LoraSettings(id=str(folder)) for name, folder in folders.items()}


def _rows(kind: str, wanted: str) -> list[ImageRow]:
    side = families.SIDES.get(kind, SIDE)
    return [
        runs.image_row("a red circle", place, loras=wanted, width=side, height=side)
        for place in range(2)
    ]


def _unfused(pipe: Untyped, files: Files, rows: Sequence[ImageRow]) -> npt.NDArray[np.int16]:
    facts = load_lora_facts(ModelSettings(id="here", loras=files))
    return np.array(pixels_of(Denoiser(pipe, loras=LoraLayers(pipe, files, facts)), rows, 2), "i2")


def _fused(pipe: Untyped, files: Files, rows: Sequence[ImageRow]) -> npt.NDArray[np.int16]:
    facts = load_lora_facts(ModelSettings(id="here", loras=files))
    fuse_loras(pipe, files, facts, rows[0].parameters.loras or "")
    return np.array(pixels_of(Denoiser(pipe), rows, 2), "i2")


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("wanted", ["style:0.8", BOTH])
@pytest.mark.parametrize("kind", ["sd", "sdxl", "flux", "qwen-image"])
def test_images_are_those_of_the_same_loras_by_row(kind: str, wanted: str) -> None:
    rows = _rows(kind, wanted)
    plain = np.array(pixels_of(Denoiser(families.pipe(kind)), rows, 2), "i2")
    fused = _fused(families.pipe(kind), _files(kind), rows)
    assert np.abs(fused - _unfused(families.pipe(kind), _files(kind), rows)).max() <= 1
    assert not np.array_equal(fused, plain)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    file, rows = tmp_path / "style.safetensors", _rows("sd", "style:1")
    tensors = load_file(loras.folder("sd", 1) / loras.FILE)
    save_file({name: tensor * 1e30 for name, tensor in tensors.items()}, file)
    told = r"^defaults\.loras is style:1, which cannot be added .* \(a sum is not finite\)\. Choose"
    with pytest.raises(BadInput, match=told):
        _fused(families.pipe("sd"), {"style": LoraSettings(id=str(file))}, rows)


def _settings(dtype: str = "float32") -> dict[str, object]:
    files = {name: {"id": lora.id} for name, lora in _files("sd").items()}
    defaults = {"steps": 2, "guidance": 3.0, "loras": BOTH}
    model = {"id": str(families.folder("sd")), "dtype": dtype, "loras": files}
    return {"model": model, "defaults": defaults}


def test_images_of_a_job_show_what_all_share_as_they_show_what_rows_ask_for(
    tmp_path: Path,
) -> None:
    by_row = [{**row, "loras": BOTH} for row in runs.PROMPTS[:2]]
    shown = []
    uris = []
    for name, rows in (("fused", runs.PROMPTS[:2]), ("by-row", by_row)):
        prompts = runs.write_prompts(tmp_path / f"{name}.parquet", rows)
        out = str(tmp_path / name)
        done = run(runs.job(prompts, out, **_settings()))
        store, rows_made = open_store(done.uri), manifests(done.uri)
        pictures = [image(store, row) for row in rows_made]
        tags = b"<lora:detail:-0.5> <lora:style:0.8>"
        told = {picture for picture in pictures if tags in picture and b"Lora hashes" in picture}
        shown.append(([row["loras"] for row in rows_made], len(told)))
        uris.append(done.uri)
    assert shown == [([BOTH, BOTH], 2)] * 2
    compared = diff(uris[0], uris[1], str(tmp_path / "diff"))
    assert SettingDifference("fused LoRAs", BOTH, "") in compared.settings
