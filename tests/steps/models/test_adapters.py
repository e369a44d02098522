"""ControlNets and models by their configurations alone."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.adapters import (
    adapter_keys,
)
from tests import adapters
from tests.hub import MODEL, REVISION, serving_model

PIPELINE = "StableDiffusionPipeline"
FILE = "adapter.safetensors"


def _with_adapters(controlnet: Path, ip_adapter: Path, /, **scales: float) -> ModelSettings:
    return ModelSettings(
        id=str(adapters.model("sd")),
        controlnet=ControlNetSettings(id=str(controlnet), scale=scales.get("controlnet", 0.7)),
        ip_adapter=IpAdapterSettings(
            id=str(ip_adapter), weight_name=FILE, scale=scales.get("ip_adapter", 0.6)
        ),
    )


def test_files_and_settings_of_each_adapter_change_what_identifies_it(tmp_path: Path) -> None:
    folders = adapters.controlnet("sd"), adapters.ip_adapter("sd")
    moved = [shutil.copytree(folder, tmp_path / folder.name) for folder in folders]
    keys = adapter_keys(_with_adapters(*folders), PIPELINE)
    assert adapter_keys(_with_adapters(*moved), PIPELINE) == keys
    for column, name in (("control_image", "controlnet"), ("reference_image", "ip_adapter")):
        scaled = adapter_keys(_with_adapters(*folders, **{name: 0.9}), PIPELINE)
        assert {key for key in keys if scaled[key] != keys[key]} == {column}
    (moved[0] / "config.json").write_text((moved[0] / "config.json").read_text() + "\n")
    changed = adapter_keys(_with_adapters(*moved), PIPELINE)
    assert {key for key in keys if changed[key] != keys[key]} == {"control_image"}


@pytest.mark.parametrize("is_pickled", [False, True])
@pytest.mark.parametrize("kind", ["controlnet", "ip_adapter"])
def test_an_adapter_on_the_hub_that_has_only_pickles_is_refused_at_planning(
    kind: str, is_pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = adapters.controlnet("sd") if kind == "controlnet" else adapters.ip_adapter("sd")
    folder = shutil.copytree(own, tmp_path / "repository")
    for weights in folder.glob("*.safetensors"):
        weights.rename(weights.with_suffix(".bin") if is_pickled else weights)
    local = _with_adapters(adapters.controlnet("sd"), adapters.ip_adapter("sd"))
    on_hub = getattr(local, kind).model_copy(update={"id": MODEL, "revision": REVISION})
    with serving_model(folder, tmp_path, monkeypatch):
        expected = pytest.raises(BadInput, match="pickles can run code")
        with expected if is_pickled else nullcontext():
            adapter_keys(local.model_copy(update={kind: on_hub}), PIPELINE)


@pytest.mark.parametrize("place", [0, 1])
def test_an_adapter_that_has_only_pickles_is_refused(place: int, tmp_path: Path) -> None:
    folders = [adapters.controlnet("sd"), adapters.ip_adapter("sd")]
    folders[place] = shutil.copytree(folders[place], tmp_path / "pickled")
    for weights in folders[place].glob("*.safetensors"):
        weights.rename(weights.with_suffix(".bin"))
    model = _with_adapters(*folders)
    with pytest.raises(BadInput, match=r"pickles can run code. Convert it to safetensors"):
        adapter_keys(model, PIPELINE)


@pytest.mark.parametrize(("place", "encoder"), [(0, ""), (1, "image_encoder")])
def test_an_adapter_that_names_code_is_refused(place: int, encoder: str, tmp_path: Path) -> None:
    folders = [adapters.controlnet("sd"), adapters.ip_adapter("sd")]
    folders[place] = shutil.copytree(folders[place], tmp_path / "evil")
    config = folders[place] / encoder / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "attn_implementation": "evil/kernels"}))
    with pytest.raises(BadInput, match="attn_implementation names code on a hub"):
        adapter_keys(_with_adapters(*folders), PIPELINE)
