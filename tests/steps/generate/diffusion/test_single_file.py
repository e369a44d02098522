"""A model in one file draws what the same model in a folder draws."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.loading import load_checkpoint
from imagekiln.steps.local import run
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests import altered, layouts, models
from tests.faults import manifests
from tests.runs import PROMPTS, job, write_prompts
from tests.single_file import write_checkpoint

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)
LAYOUTS = {
    "sdxl": (layouts.sdxl, layouts.sdxl_tensors),
    "sd3": (layouts.sd3, layouts.sd3_tensors),
}


def _pixels(folder: Path, model: dict[str, object]) -> list[str]:
    prompts = write_prompts(folder / "prompts.parquet", PROMPTS[:4])
    done = run(job(prompts, str(folder / "out"), model=model), NoProgress(), Stop())
    return [str(row["pixels_sha256"]) for row in manifests(done.uri)]


def test_a_model_in_one_file_draws_what_its_folder_draws(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path / "model.safetensors")
    folder = str(models.folder("sd"))
    in_folder: dict[str, object] = {"id": folder, "dtype": "float32"}
    in_file: dict[str, object] = {"id": str(file), "config": folder, "dtype": "float32"}
    assert _pixels(tmp_path / "file", in_file) == _pixels(tmp_path / "folder", in_folder)


@pytest.mark.parametrize(
    "config", [{}, {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}]
)
def test_a_file_is_drawn_by_what_it_says_that_it_predicts(
    config: dict[str, object], tmp_path: Path
) -> None:
    plain = write_checkpoint(tmp_path / "plain.safetensors")
    folder = _with_scheduler(tmp_path / "config", **config)
    file = Path(shutil.copy(plain, tmp_path / "v.safetensors"))
    altered.rewrite(file, _mark_prediction)
    stated = _with_scheduler(
        tmp_path / "stated", prediction_type="v_prediction", rescale_betas_zero_snr=True
    )
    drawn = _pixels(tmp_path / "v", {"id": str(file), "config": folder, "dtype": "float32"})
    as_folder: dict[str, object] = {"id": str(plain), "config": stated, "dtype": "float32"}
    assert drawn == _pixels(tmp_path / "folder", as_folder)
    as_epsilon: dict[str, object] = {**as_folder, "config": str(models.folder("sd"))}
    assert drawn != _pixels(tmp_path / "epsilon", as_epsilon)


@pytest.mark.parametrize("part", ["cond_stage_model.", "first_stage_model."])
def test_a_network_that_the_file_lacks_is_that_of_the_configuration(
    part: str, tmp_path: Path
) -> None:
    file = write_checkpoint(tmp_path / "model.safetensors")
    folder = str(models.folder("sd"))
    in_file: dict[str, object] = {"id": str(file), "config": folder, "dtype": "float32"}
    whole = _pixels(tmp_path / "whole", in_file)
    altered.rewrite(file, _without_part(part))
    assert _pixels(tmp_path / "part", in_file) == whole


def test_a_tensor_that_the_configuration_s_network_lacks_is_named(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path / "model.safetensors")
    altered.rewrite(file, _without_part("cond_stage_model."))
    text_encoder = "text_encoder/model.safetensors"
    change = altered.without("fc1.weight")
    folder = altered.copy(models.folder("sd"), tmp_path / "config", text_encoder, change)
    prompts = write_prompts(tmp_path / "prompts.parquet", PROMPTS[:1])
    model = {"id": str(file), "config": str(folder), "dtype": "float32"}
    with pytest.raises(BadInput, match=r"text_encoder: its files lack .*fc1\.weight"):
        run(job(prompts, str(tmp_path / "out"), model=model), NoProgress(), Stop())


def _without_part(part: str) -> altered.Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(part)]:
            del tensors[name]

    return change


def _with_scheduler(folder: Path, **values: object) -> str:
    shutil.copytree(models.folder("sd"), folder)
    path = folder / "scheduler/scheduler_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | values))
    return str(folder)


def _mark_prediction(tensors: dict[str, torch.Tensor]) -> None:
    tensors |= {"v_pred": torch.zeros(0), "ztsnr": torch.zeros(0)}


@pytest.mark.parametrize("kind", ["sdxl", "sd3"])
@pytest.mark.parametrize("lacks", [(), ("text_encoders.t5xxl.",), ("first_stage", "cond", "text_")])
def test_files_of_later_families_are_taken_whole(
    kind: str, lacks: tuple[str, ...], tmp_path: Path
) -> None:
    pipe, tensors_of = LAYOUTS[kind]
    original = pipe()
    original.save_pretrained(tmp_path / "config")
    tensors = {
        name: tensor.clone().contiguous()
        for name, tensor in tensors_of(original).items()
        if not name.startswith(lacks)
    }
    save_file(tensors, tmp_path / "model.safetensors")
    arguments = (tmp_path / "config", type(original).__name__, torch.float32)
    loaded = load_checkpoint(tmp_path / "model.safetensors", *arguments)
    for name in ("unet", "transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3"):
        if (component := original.components.get(name)) is not None:
            weights = component.state_dict()
            torch.testing.assert_close(
                loaded.components[name].state_dict(), weights, rtol=0, atol=0
            )
    more = tensors | {"model.diffusion_model.sharpener.weight": torch.arange(9.0)}
    save_file(more, tmp_path / "more.safetensors")
    with pytest.raises(ValueError, match=r"no place for model\.diffusion_model\.sharpener"):
        load_checkpoint(tmp_path / "more.safetensors", *arguments)
