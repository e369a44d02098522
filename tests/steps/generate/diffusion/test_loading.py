"""Every loader applies all that its files hold, and takes nothing that they lack."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.adapters import load_adapters
from imagekiln.steps.generate.diffusion.image_models import (
    load_captioner,
    load_model_scorer,
    load_upscaler,
)
from imagekiln.steps.generate.diffusion.pipeline import load_pipeline
from imagekiln.steps.job.passes import CaptionPass, UpscalePass
from imagekiln.steps.job.prompts import RewriteSettings
from imagekiln.steps.models.component_files import weights_digest
from imagekiln.steps.rewrite.language_model import load_language_model
from imagekiln.steps.runs.plan import Plan, iter_pass_plans
from imagekiln.steps.storage import open_store
from tests import adapters, altered, image_models, language_models, models, scorers, single_file
from tests.runs import PROMPTS, planned

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS, models.FLUX_WARNS)
CPU = torch.device("cpu")
Load: TypeAlias = Callable[[Path, Path], object]  # of a scratch folder and the model


@dataclass(frozen=True, slots=True)
class Loader:
    """What a kind of model is made and loaded by, its file, and the end of a tensor's name."""

    make: Callable[[], Path]
    load: Load
    file: str
    tensor: str


def _plan(folder: Path, **changes: object) -> Plan:
    return planned(folder, str(folder / "out"), PROMPTS, **changes).plan


def _pipeline(scratch: Path, folder: Path) -> object:
    return load_pipeline(_plan(scratch, model={"id": str(folder), "dtype": "float32"}))


def _one_file(scratch: Path, folder: Path) -> object:
    model = {
        "id": str(folder / "model.safetensors"),
        "config": str(models.folder("sd")),
        "dtype": "float32",
    }
    return load_pipeline(_plan(scratch, model=model))


def _file_folder() -> Path:
    folder = models.scratch("one-file")
    single_file.write_checkpoint(folder / "model.safetensors")
    return folder


def _refiner(scratch: Path, folder: Path) -> object:
    settings = {"kind": "refine", "strength": 0.5, "model": {"id": str(folder), "dtype": "float32"}}
    plan = _plan(scratch, passes={"detail": settings})
    [(_, pass_plan)] = iter_pass_plans(plan)
    return load_pipeline(pass_plan)


def _adapter(kind: str, model: models.Kind = "sd") -> Load:
    def load(scratch: Path, folder: Path) -> object:
        settings: dict[str, object] = {"id": str(folder)}
        if kind == "ip_adapter":
            settings["weight_name"] = "adapter.safetensors"
        chosen = {"id": str(models.folder(model)), "dtype": "float32", kind: settings}
        return load_adapters(
            models.pipe(model), _plan(scratch, model=chosen), open_store(str(scratch))
        )

    return load


def _scorer(**settings: object) -> Load:
    def load(scratch: Path, folder: Path) -> object:
        return load_model_scorer(
            _plan(scratch, scores={"s": {"id": str(folder), **settings}}), "s", CPU, None
        )

    return load


def _head_folder() -> Path:
    folder = models.scratch("head-copy")
    (folder / "head.safetensors").write_bytes(scorers.aesthetic_head().read_bytes())
    return folder


def _head(scratch: Path, folder: Path) -> object:
    head = str(folder / "head.safetensors")
    return _scorer(kind="aesthetic", head=head)(scratch, scorers.clip_folder())


def _upscaler(_: Path, folder: Path) -> object:
    settings = UpscalePass(kind="upscale", id=str(folder))
    return load_upscaler("passes.u", settings, weights_digest(settings), CPU)


def _captioner(_: Path, folder: Path) -> object:
    settings = CaptionPass(id=str(folder), max_tokens=8)
    return load_captioner("passes.c", settings, weights_digest(settings), CPU)


def _language_model(_: Path, folder: Path) -> object:
    settings = RewriteSettings.model_validate({"model": {"id": str(folder)}})
    return load_language_model(settings, folder, "cpu")


PLAIN = "diffusion_pytorch_model.safetensors"
MODEL = "model.safetensors"
LOADERS: dict[str, Loader] = {
    "unet": Loader(lambda: models.folder("sd"), _pipeline, f"unet/{PLAIN}", "to_q.weight"),
    "vae": Loader(lambda: models.folder("sd"), _pipeline, f"vae/{PLAIN}", "conv1.bias"),
    "text encoder": Loader(
        lambda: models.folder("sd"), _pipeline, f"text_encoder/{MODEL}", "fc1.weight"
    ),
    "t5": Loader(lambda: models.folder("flux"), _pipeline, f"text_encoder_2/{MODEL}", "q.weight"),
    "one file": Loader(_file_folder, _one_file, MODEL, "ff.net.2.weight"),
    "refiner": Loader(lambda: models.folder("sd"), _refiner, f"unet/{PLAIN}", "conv_in.bias"),
    "controlnet": Loader(
        lambda: adapters.controlnet("sd"), _adapter("controlnet"), PLAIN, "to_k.weight"
    ),
    "ip-adapter": Loader(
        lambda: adapters.ip_adapter("sd"),
        _adapter("ip_adapter"),
        "adapter.safetensors",
        "norm.weight",
    ),
    "flux ip-adapter": Loader(
        adapters.flux_ip_adapter,
        _adapter("ip_adapter", "flux"),
        "adapter.safetensors",
        "norm.bias",
    ),
    "image encoder": Loader(
        lambda: adapters.ip_adapter("sd"),
        _adapter("ip_adapter"),
        f"image_encoder/{MODEL}",
        "fc2.bias",
    ),
    "clip": Loader(scorers.clip_folder, _scorer(kind="clip_score"), MODEL, "k_proj.bias"),
    "classifier": Loader(
        scorers.classifier_folder,
        _scorer(kind="classifier", label="nsfw"),
        MODEL,
        "classifier.bias",
    ),
    "head": Loader(_head_folder, _head, "head.safetensors", "0.weight"),
    "upscaler": Loader(image_models.upscaler_folder, _upscaler, MODEL, "query.weight"),
    "git": Loader(image_models.captioner_folder, _captioner, MODEL, "value.weight"),
    "blip": Loader(lambda: image_models.captioner_folder("blip"), _captioner, MODEL, "key.weight"),
    "gpt2": Loader(
        lambda: language_models.language_model("gpt2"), _language_model, MODEL, "c_fc.weight"
    ),
    "t5 writer": Loader(
        lambda: language_models.language_model("t5"), _language_model, MODEL, "k.weight"
    ),
}


def _name(kind: str, name: str) -> str:
    """A name within the part of the file that the loader reads."""
    prefixes = {"one file": "model.diffusion_model.", "ip-adapter": "ip_adapter."}
    return prefixes.get(kind, "double_blocks." if kind == "flux ip-adapter" else "") + name


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("kind", LOADERS)
def test_a_tensor_that_files_lack_is_named(kind: str, tmp_path: Path) -> None:
    loader = LOADERS[kind]
    change = altered.without(loader.tensor)
    folder = altered.copy(loader.make(), tmp_path / "model", loader.file, change)
    with pytest.raises(BadInput) as caught:
        loader.load(tmp_path, folder)
    message = str(caught.value)
    assert "meta" not in message
    assert message.count("\n") == 0
    assert loader.tensor.split(".")[0] in message or kind in ("one file", "head")


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("kind", LOADERS)
def test_a_tensor_that_the_model_has_no_place_for_is_named(kind: str, tmp_path: Path) -> None:
    loader = LOADERS[kind]
    change = altered.adding(_name(kind, "sharpener.3.scale"))
    folder = altered.copy(loader.make(), tmp_path / "model", loader.file, change)
    with pytest.raises(BadInput, match=r"sharpener\.3\.scale"):
        loader.load(tmp_path, folder)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", sorted(LOADERS.keys() - {"head"}))
@pytest.mark.parametrize("name", ["embeddings.position_ids", "model_ema.conv_in.weight"])
def test_copies_and_buffers_that_change_no_picture_do_no_harm(
    kind: str, name: str, tmp_path: Path
) -> None:
    loader = LOADERS[kind]
    change = altered.adding(_name(kind, name))
    folder = altered.copy(loader.make(), tmp_path / "model", loader.file, change)
    assert loader.load(tmp_path, folder) is not None
