"""Models whose files ask for more than to be read: refused before any library sees them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.component_files import require_data_only, weights_digest
from imagekiln.steps.models.facts import locate_model
from imagekiln.steps.models.transformers_models import fetch_planned_files
from imagekiln.steps.storage.uri import BUNDLED_FOLDER

SHAPES = BUNDLED_FOLDER / "shapes"
Change = Callable[[Path], object]


def setting(file: str, **values: object) -> Change:
    """Values in a JSON file of the model, which is made where there is none."""

    def write(folder: Path) -> None:
        path = folder / file
        content = json.loads(path.read_bytes()) if path.exists() else {}
        path.write_text(json.dumps(content | values), encoding="utf-8")

    return write


def weights_in(file: object, variant: str = "") -> Change:
    """An index of weights that lie in this file."""
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": file}
    name = f"text_encoder/model.safetensors.index{variant}.json"
    return setting(name, weight_map=weight_map)


def module(file: str, change: Change = lambda _: None) -> Change:
    """A module in the model's folder, and what names it."""

    def write(folder: Path) -> None:
        change(folder)
        (folder / file).write_text("raise RuntimeError('code was run')", encoding="utf-8")

    return write


def auto_class(component: str, file: str) -> Change:
    """A component whose class is in a module of the model's own."""

    def write(folder: Path) -> None:
        setting("model_index.json", **{component: ["transformers", "AutoModel"]})(folder)
        setting(f"{component}/{file}", auto_map={"AutoModel": "evil.Evil"})(folder)

    return write


REFUSED: dict[str, tuple[Change, str]] = {
    "a pipeline by its path": (
        setting("model_index.json", _class_name="../evil.Pipeline"),
        "has the class",
    ),
    "a component of Python's own": (
        setting("model_index.json", unet=["subprocess", "Popen"]),
        "has unet: subprocess, Popen",
    ),
    "a module beside a component": (
        module("unet/diffusers.py"),
        "unet has code of its own, diffusers.py",
    ),
    "a module that diffusers would read": (module("None.py"), "None.py is code"),
    "a component outside of the folder": (
        setting("model_index.json", **{"../unet": ["diffusers", "UNet2DConditionModel"]}),
        "has ../unet",
    ),
    "code of a component": (auto_class("text_encoder", "config.json"), "auto_map names code"),
    "a base model elsewhere": (
        setting("text_encoder/adapter_config.json", base_model_name_or_path="evil/base"),
        "names another model",
    ),
    "kernels on a hub": (
        setting("text_encoder/config.json", text_config={"attn_implementation": "evil/kernels"}),
        "names code on a hub",
    ),
    "weights in another folder": (
        weights_in("../../model.safetensors"),
        "no safetensors file",
    ),
    "pickled weights in an index": (weights_in("evil.bin"), "evil.bin is no safetensors"),
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_model_that_names_more_than_its_own_data_is_refused(
    change: Change, sentence: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(SHAPES, tmp_path / "model")
    change(folder)
    with pytest.raises(BadInput, match=sentence):
        locate_model(ModelSettings(id=str(folder)))
    with pytest.raises(BadInput, match=sentence):  # when it is loaded, by a plan of a stranger's
        require_data_only(folder, "model")


def test_model_of_a_score_is_refused_also_as_it_is_loaded(tmp_path: Path) -> None:
    setting("config.json", auto_map={"AutoModel": "evil.Evil"})(tmp_path)
    reference = HubReference(id=str(tmp_path))
    with pytest.raises(BadInput, match="auto_map names code"):
        fetch_planned_files("scores.pretty", reference, weights_digest(reference))


@pytest.mark.parametrize("sample_size", [0, 10**12])
def test_model_without_a_size_that_images_can_have_is_refused(
    sample_size: int, tmp_path: Path
) -> None:
    folder = shutil.copytree(SHAPES, tmp_path / "model")
    setting("unet/config.json", sample_size=sample_size)(folder)
    with pytest.raises(BadInput, match="states no size of images"):
        locate_model(ModelSettings(id=str(folder)))
