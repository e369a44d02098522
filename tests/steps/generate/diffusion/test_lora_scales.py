"""A LoRA is drawn with the scale that its file gives each layer: as if it were in the weights."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.loras import load_lora_facts
from tests import families, models
from tests.drawing import pixels_of
from tests.models import DIFFUSERS_WARNS, Kind, Untyped
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(DIFFUSERS_WARNS)
# The name of a layer in a file, and the linear layers of the pipeline that it changes.
Named: TypeAlias = tuple[str, list[str]]
Naming: TypeAlias = Callable[[Untyped], Iterator[Named]]
ATTENTION = (".to_q", ".to_k", ".to_v", ".to_out.0")
KOHYA = ("lora_down.weight", "lora_up.weight")
PEFT = ("lora_A.weight", "lora_B.weight")
DOTTED = ("lora.down.weight", "lora.up.weight")
STRENGTH = 0.3


def _layers(pipe: Untyped, component: str, endings: tuple[str, ...]) -> Iterator[str]:
    for name, layer in getattr(pipe, component).named_modules():
        if name.endswith(endings) and isinstance(layer, torch.nn.Linear):
            yield name


def _kohya(pipe: Untyped) -> Iterator[Named]:
    for name in _layers(pipe, "unet", (*ATTENTION, ".ff.net.2", ".proj_in")):
        yield "lora_unet_" + name.replace(".", "_"), [f"unet.{name}"]
    encoders = [name for name in pipe.components if name.startswith("text_encoder")]
    for component in encoders:
        number = component.removeprefix("text_encoder").removeprefix("_") or "1"
        prefix = f"lora_te{number if len(encoders) > 1 else ''}_"
        for name in _layers(pipe, component, ("q_proj", "out_proj", "fc1")):
            whole = name if name.startswith("text_model.") else f"text_model.{name}"
            yield prefix + whole.replace(".", "_"), [f"{component}.{name}"]


def _kohya_flux(pipe: Untyped) -> Iterator[Named]:
    blocks = "transformer.transformer_blocks.0.attn"
    yield (
        "lora_unet_double_blocks_0_img_attn_qkv",
        [f"{blocks}.to_q", f"{blocks}.to_k", f"{blocks}.to_v"],
    )
    yield "lora_unet_double_blocks_0_img_attn_proj", [f"{blocks}.to_out.0"]
    single = "transformer.single_transformer_blocks.0"
    yield "lora_unet_single_blocks_0_linear2", [f"{single}.proj_out"]
    yield "lora_unet_single_blocks_0_modulation_lin", [f"{single}.norm.linear"]
    for name in _layers(pipe, "text_encoder", ("q_proj", "out_proj", "fc2")):
        yield "lora_te1_text_model_" + name.replace(".", "_"), [f"text_encoder.{name}"]


def _diffusers(component: str, *, with_texts: bool = True) -> Naming:
    def names(pipe: Untyped) -> Iterator[Named]:
        for name in _layers(pipe, component, ATTENTION):
            yield f"{component}.{name}", [f"{component}.{name}"]
        if with_texts:
            for name in _layers(pipe, "text_encoder", ("v_proj", "fc1")):
                yield f"text_encoder.{name}", [f"text_encoder.{name}"]

    return names


CASES: dict[str, tuple[Kind, Naming, tuple[str, str]]] = {
    "sd-kohya": ("sd", _kohya, KOHYA),
    "sdxl-kohya": ("sdxl", _kohya, KOHYA),
    "flux-kohya": ("flux", _kohya_flux, KOHYA),
    "sd-peft": ("sd", _diffusers("unet"), PEFT),
    "sdxl-diffusers": ("sdxl", _diffusers("unet", with_texts=False), DOTTED),
    "sd3-peft": ("sd3", _diffusers("transformer"), PEFT),
    "flux-peft": ("flux", _diffusers("transformer"), PEFT),
}
STATES = ("alphas", "none", "metadata")


def _make(case: str, state: str, file: Path, pipe: Untyped) -> dict[str, torch.Tensor]:
    """Save a LoRA of mixed ranks, and return what it adds to each layer of the pipeline."""
    _, naming, (down_name, up_name) = CASES[case]
    random = torch.Generator().manual_seed(4)
    tensors: dict[str, torch.Tensor] = {}
    added: dict[str, torch.Tensor] = {}
    config: dict[str, object] = {}
    for number, (key, targets) in enumerate(naming(pipe)):
        sizes = [pipe.components[target.partition(".")[0]] for target in targets]
        layers = [
            each.get_submodule(target.partition(".")[2])
            for each, target in zip(sizes, targets, strict=True)
        ]
        rank, alpha = 1 + number % 3, 0.5 + number % 4
        rows = sum(layer.out_features for layer in layers)
        down = torch.randn(rank, layers[0].in_features, generator=random) * STRENGTH
        up = torch.randn(rows, rank, generator=random) * STRENGTH
        tensors[f"{key}.{down_name}"], tensors[f"{key}.{up_name}"] = down, up
        component, _, inner = key.partition(".")
        if state == "alphas":
            tensors[f"{key}.alpha"] = torch.tensor(alpha)
        if state == "metadata":
            config[f"{component}.r"] = 2
            config[f"{component}.lora_alpha"] = 2
            patterns = config.setdefault(f"{component}.alpha_pattern", {})
            assert isinstance(patterns, dict)
            patterns[inner] = alpha
        scale = 1.0 if state == "none" else alpha / rank
        parts = torch.split(scale * (up @ down), [layer.out_features for layer in layers])
        added |= dict(zip(targets, parts, strict=True))
    metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(config)} if config else None
    save_file(tensors, file, metadata)
    return added


def _draw(pipe: Untyped, loras: dict[str, LoraSettings], wanted: str | None) -> Untyped:
    facts = load_lora_facts(ModelSettings(id="bundled:shapes", loras=loras))
    denoiser = Denoiser(pipe, loras=LoraLayers(pipe, loras, facts))
    rows = [image_row("a red circle", 3, negative_prompt="large", loras=wanted)]
    return np.asarray(pixels_of(denoiser, rows, 1)[0], np.int16)


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize(
    ("case", "state"),
    [
        (case, state)
        for case in CASES
        for state in STATES
        if "kohya" not in case or state != "metadata"
    ],
)
def test_each_layer_is_scaled_as_the_file_says(case: str, state: str, tmp_path: Path) -> None:
    kind, file = CASES[case][0], tmp_path / "style.safetensors"
    merged = models.pipe(kind)
    plain = _draw(models.pipe(kind), {}, None)
    with torch.no_grad():
        for target, addition in _make(case, state, file, merged).items():
            merged.components[target.partition(".")[0]].get_submodule(
                target.partition(".")[2]
            ).weight += 0.7 * addition
    drawn = _draw(models.pipe(kind), {"style": LoraSettings(id=str(file))}, "style:0.7")
    assert np.abs(drawn - _draw(merged, {}, None)).max() <= 1
    assert not np.array_equal(drawn, plain)


def _refusal(
    tmp_path: Path, tensors: dict[str, torch.Tensor], kind: Kind = "flux", pipe: Untyped = None
) -> str:
    file = tmp_path / "style.safetensors"
    save_file(tensors, file)
    with pytest.raises(BadInput) as caught:
        _draw(pipe or models.pipe(kind), {"style": LoraSettings(id=str(file))}, "style:1")
    return str(caught.value)


def _pair(name: str, features: int = 32) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(len(name))
    return {
        f"{name}.lora_down.weight": torch.randn(2, features, generator=random),
        f"{name}.lora_up.weight": torch.randn(features, 2, generator=random),
    }


@pytest.mark.parametrize(
    "name",
    [
        "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q",
        "lora_te3_encoder_block_0_layer_0_SelfAttention_q",
        "lora_te1_text_projection",
    ],
)
def test_a_layer_of_an_encoder_that_takes_no_lora_is_refused_by_its_name(
    name: str, tmp_path: Path
) -> None:
    tensors = _pair("lora_unet_double_blocks_0_img_attn_proj") | _pair(name)
    assert name in _refusal(tmp_path, tensors)


def test_layers_of_a_lokr_that_the_model_lacks_are_refused(tmp_path: Path) -> None:
    pipe = families.pipe("z-image")
    sides = pipe.transformer.layers[0].attention.to_q.weight.shape
    factors = {"lokr_w1": torch.ones(2, 2), "lokr_w2": torch.ones(sides[0] // 2, sides[1] // 2)}
    tensors = {
        f"diffusion_model.layers.{layer}.attention.to_q.{name}": factor.clone()
        for layer in (0, 99)
        for name, factor in factors.items()
    }
    assert "no layer for 2 of its 4 factors" in _refusal(tmp_path, tensors, pipe=pipe)
