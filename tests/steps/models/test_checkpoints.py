"""What a weights file says of itself is heeded at planning, in a sentence."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.checkpoints import scheduler_changes
from imagekiln.steps.models.facts import locate_model
from imagekiln.steps.models.loras import load_lora_facts
from imagekiln.steps.storage.uri import BUNDLED_FOLDER

UNET = "model.diffusion_model.input_blocks.0.0.weight"
SHAPES = BUNDLED_FOLDER / "shapes"


def _save(file: Path, *names: str, **metadata: str) -> Path:
    texts = {key.replace("__", "."): value for key, value in metadata.items()}
    save_file({name: np.ones(2, np.float32) for name in names}, file, texts or None)
    return file


def _pipeline(folder: Path, scheduler: str) -> str:
    """The bundled model with another scheduler."""
    config = _config(folder, scheduler)
    index = json.loads((folder / "model_index.json").read_bytes())
    index["scheduler"] = ["diffusers", scheduler]
    (folder / "model_index.json").write_text(json.dumps(index))
    return config


def _config(folder: Path, scheduler: str = "DDIMScheduler", **values: object) -> str:
    """The bundled model with another configuration of its scheduler."""
    shutil.copytree(SHAPES, folder)
    path = folder / "scheduler/scheduler_config.json"
    config = json.loads(path.read_bytes()) | {"_class_name": scheduler} | values
    path.write_text(json.dumps(config))
    return str(folder)


def _refusal(file: Path, config: str = "bundled:shapes") -> str:
    with pytest.raises(BadInput) as caught:
        locate_model(ModelSettings(id=str(file), config=config))
    return str(caught.value).removeprefix(f"{file}: ")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lora_unet_mid_block.lora_down.weight", "is a LoRA, not a model that draws"),
        ("control_model.input_hint_block.0.weight", "is a ControlNet, not a model that draws"),
        ("decoder.mid.block_1.conv1.weight", "is a VAE, not a model that draws"),
        ("emb_params", "is an embedding, not a model that draws"),
    ],
)
def test_a_file_of_another_kind_is_not_taken_for_a_model(
    name: str, kind: str, tmp_path: Path
) -> None:
    assert _refusal(_save(tmp_path / "a.safetensors", name)).startswith(kind)


@pytest.mark.parametrize(
    "scale",
    [
        "model.diffusion_model.out.2.scale_weight",
        "scaled_fp8",
        "transformer_blocks.0.attn.to_q.wscales",
    ],
)
def test_scales_of_quantized_weights_are_not_left_out(scale: str, tmp_path: Path) -> None:
    message = _refusal(_save(tmp_path / "a.safetensors", UNET, scale))
    assert message.startswith(f"is quantized (it has {scale})")


@pytest.mark.parametrize(
    ("values", "method"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bits"),
        ({"text_config": {"quantization_config": {"quant_method": "torchao"}}}, "torchao"),
        ({"quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
    ],
)
def test_a_quantized_component_is_refused_at_planning(
    values: dict[str, object], method: str, tmp_path: Path
) -> None:
    _config(tmp_path / "model")
    path = tmp_path / "model/text_encoder/config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | values))
    with pytest.raises(
        BadInput, match=rf"model: text_encoder: config\.json: is quantized \({method}"
    ):
        locate_model(ModelSettings(id=str(tmp_path / "model")))


@pytest.mark.parametrize(
    ("names", "metadata", "config"),
    [
        ((), {}, {}),
        (("v_pred",), {}, {"prediction_type": "v_prediction"}),
        (
            ("v_pred", "ztsnr"),
            {},
            {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True},
        ),
        ((), {"modelspec__prediction_type": "v"}, {"prediction_type": "v_prediction"}),
        ((), {"ss_v_parameterization": "True"}, {"prediction_type": "v_prediction"}),
    ],
)
def test_a_file_says_what_its_network_predicts(
    names: tuple[str, ...], metadata: dict[str, str], config: dict[str, object], tmp_path: Path
) -> None:
    file = _save(tmp_path / "a.safetensors", UNET, *names, **metadata)
    own = _config(tmp_path / "config", prediction_type="epsilon")
    model = ModelSettings(id=str(file), config=own)
    assert scheduler_changes(model) == config
    locate_model(model)


@pytest.mark.parametrize(
    ("names", "metadata", "scheduler", "sentence"),
    [
        (
            ("v_pred",),
            {},
            "FlowMatchEulerDiscreteScheduler",
            "says that it predicts v_prediction, and scheduler/scheduler_config.json",
        ),
        (
            (),
            {"modelspec__prediction_type": "flow"},
            "DDIMScheduler",
            "says that it predicts flow_prediction, and scheduler/",
        ),
        (
            ("edm_vpred.sigma_max",),
            {},
            "EulerDiscreteScheduler",
            "says that it predicts by the noise levels of EDM, and scheduler/",
        ),
    ],
)
def test_a_configuration_that_cannot_draw_as_the_file_says_is_refused(
    names: tuple[str, ...],
    metadata: dict[str, str],
    scheduler: str,
    sentence: str,
    tmp_path: Path,
) -> None:
    file = _save(tmp_path / "a.safetensors", UNET, *names, **metadata)
    assert _refusal(file, _pipeline(tmp_path / "config", scheduler)).startswith(sentence)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("a.hada_w1_a", "a.hada_w2_a"), "is a LoHa, not a plain LoRA"),
        (("a.lora_down.weight", "b.diff"), "has b.diff, one of 1 tensors that no layer"),
        (("a.lora_up.weight", "a.lora_mid.weight"), "has a.lora_mid.weight, one of 1 tensors"),
        ((UNET,), "is a whole model, not a plain LoRA"),
    ],
)
def test_what_would_not_be_applied_of_a_lora_is_refused_at_planning(
    names: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    loras = {"style": LoraSettings(id=str(_save(tmp_path / "a.safetensors", *names)))}
    with pytest.raises(BadInput) as caught:
        load_lora_facts(ModelSettings(id="bundled:shapes", loras=loras))
    assert str(caught.value).startswith(f"model.loras.style: a.safetensors {problem}")


def test_a_lora_whose_scale_is_in_another_file_is_refused(tmp_path: Path) -> None:
    file = _save(tmp_path / "adapter_model.safetensors", "base_model.model.a.lora_A.weight")
    loras = {"style": LoraSettings(id=str(file))}
    with pytest.raises(BadInput, match=r"whose scale is in adapter_config\.json and not read"):
        load_lora_facts(ModelSettings(id="bundled:shapes", loras=loras))
