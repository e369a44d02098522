"""Files in the hub's cache that are gone or damaged between their download and their loading."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.diffusion.adapters import load_adapters
from imagekiln.steps.generate.diffusion.image_models import (
    load_captioner,
    load_model_scorer,
    load_upscaler,
)
from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.job.passes import CaptionPass, UpscalePass
from imagekiln.steps.job.prompts import RewriteSettings
from imagekiln.steps.models import hub
from imagekiln.steps.models.hub import require_undamaged
from imagekiln.steps.rewrite.language_model import load_language_model
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage import open_store
from tests import adapters, image_models, language_models, loras, models, scorers
from tests.hub import MODEL, REVISION, serving_model
from tests.runs import PROMPTS, planned

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)
CPU = torch.device("cpu")
ON_HUB = {"id": MODEL, "revision": REVISION}
DIGEST = f"{MODEL}@{REVISION}"
Loading: TypeAlias = Callable[[], object]


def _plan(folder: Path, **changes: object) -> Plan:
    return planned(folder, str(folder / "out"), PROMPTS, **changes).plan


def _tiny(**changes: object) -> dict[str, object]:
    return {"id": str(models.folder("sd")), "dtype": "float32"} | changes


def _upscaler(_folder: Path) -> Loading:
    settings = UpscalePass(kind="upscale", **ON_HUB)
    return lambda: load_upscaler("passes.u", settings, DIGEST, CPU)


def _captioner(_folder: Path) -> Loading:
    settings = CaptionPass.model_validate({"kind": "caption", **ON_HUB})
    return lambda: load_captioner("passes.c", settings, DIGEST, CPU)


def _scorer(folder: Path) -> Loading:
    plan = _plan(folder, scores={"s": {"kind": "clip_score", **ON_HUB}})
    return lambda: load_model_scorer(plan, "s", CPU, None)


def _controlnet(folder: Path) -> Loading:
    plan = _plan(folder, model=_tiny(controlnet=ON_HUB))
    return lambda: load_adapters(models.pipe("sd"), plan, open_store(str(folder)))


def _ip_adapter(folder: Path) -> Loading:
    adapter = ON_HUB | {"weight_name": "adapter.safetensors"}
    plan = _plan(folder, model=_tiny(ip_adapter=adapter))
    return lambda: load_adapters(models.pipe("sd"), plan, open_store(str(folder)))


def _lora(folder: Path) -> Loading:
    lora = ON_HUB | {"weight_name": "pytorch_lora_weights.safetensors"}
    plan = _plan(folder, model=_tiny(loras={"style": lora}))
    layers = LoraLayers(models.pipe("sd"), plan.job.model.loras, plan.loras)
    return lambda: layers.load(["style"])


def _language_model(_folder: Path) -> Loading:
    settings = RewriteSettings.model_validate({"model": ON_HUB})
    return lambda: load_language_model(settings, "cpu")


PREPARED: dict[str, tuple[Callable[[], Path], Callable[[Path], Loading]]] = {
    "upscaler": (image_models.upscaler_folder, _upscaler),
    "captioner": (image_models.captioner_folder, _captioner),
    "scorer": (scorers.clip_folder, _scorer),
    "controlnet": (lambda: adapters.controlnet("sd"), _controlnet),
    "ip_adapter": (lambda: adapters.ip_adapter("sd"), _ip_adapter),
    "lora": (lambda: loras.folder("sd"), _lora),
    "language model": (lambda: language_models.language_model("gpt2"), _language_model),
}
CASES = [
    (kind, name)
    for kind in PREPARED
    for name in ("config.json", "*.safetensors")
    if (kind, name) not in [("lora", "config.json"), ("ip_adapter", "config.json")]
]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_file_that_is_lost_or_damaged_before_it_is_loaded_is_worth_another_try(
    kind: str, name: str, damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(about: str, paths: Sequence[Path]) -> None:
        require_undamaged(about, paths)
        for content in {path.resolve() for path in paths if path.match(name)}:
            content.write_bytes(b"{") if damaged else content.unlink()

    make, prepare = PREPARED[kind]
    with serving_model(make(), tmp_path, monkeypatch):
        prepare(tmp_path / "whole")()
        load = prepare(tmp_path / "lost")
        with monkeypatch.context() as patch:
            patch.setattr(hub, "require_undamaged", lose)
            with pytest.raises(TryAgain, match="was damaged in this"):
                load()
        load()
