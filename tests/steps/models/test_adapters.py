"""ControlNets and models by their configurations alone."""

import json
import shutil
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.adapters import adapter_keys, controlnet_mismatch
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
    for column, name in (("control_image", "controlnet"), ("reference_images", "ip_adapter")):
        scaled = adapter_keys(_with_adapters(*folders, **{name: 0.9}), PIPELINE)
        assert {key for key in keys if scaled[key] != keys[key]} == {column}
    (moved[0] / "config.json").write_text((moved[0] / "config.json").read_text() + "\n")
    changed = adapter_keys(_with_adapters(*moved), PIPELINE)
    assert {key for key in keys if changed[key] != keys[key]} == {"control_image"}


@pytest.mark.parametrize("on_hub", [False, True])
@pytest.mark.parametrize("kind", ["controlnet", "ip_adapter"])
def test_an_adapter_that_has_only_pickles_is_refused_at_planning(
    kind: str, on_hub: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _with_adapters(adapters.controlnet("sd"), adapters.ip_adapter("sd"))
    adapter = getattr(model, kind)
    folder = shutil.copytree(adapter.id, tmp_path / "repository")
    place = {"id": MODEL, "revision": REVISION} if on_hub else {"id": str(folder)}
    model = model.model_copy(update={kind: adapter.model_copy(update=place)})
    with serving_model(folder, tmp_path, monkeypatch):
        adapter_keys(model, PIPELINE)
        for weights in folder.glob("*.safetensors"):
            weights.rename(weights.with_suffix(".bin"))
        with pytest.raises(BadInput, match=r"pickles can run code\. Convert it to safetensors"):
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


@pytest.mark.parametrize(
    ("changes", "mismatch"),
    [
        ({"joint_attention_dim": None}, None),  # as SD3.5's own ControlNets, which read no texts
        ({"extra_conditioning_channels": 1}, "needs a mask beside its image"),
        ({"num_mode": 10}, "is a union ControlNet, which needs a mode"),
        ({"num_attention_heads": 12}, "has num_attention_heads x attention_head_dim of 1536, but "),
    ],
)
def test_a_controlnet_that_does_not_fit_is_told_by_its_configuration(
    changes: dict[str, object], mismatch: str | None
) -> None:
    wide = {"joint_attention_dim": 4096, "num_attention_heads": 24, "attention_head_dim": 128}
    found = controlnet_mismatch(wide | changes, {**wide})
    assert str(found).startswith(str(mismatch))
