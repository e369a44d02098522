"""What a weights file says of itself is heeded at planning, in a sentence."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.checkpoints import scheduler_changes
from imagekiln.steps.models.facts import locate_model, model_digest
from imagekiln.steps.models.loras import load_lora_facts
from imagekiln.steps.models.resolve import resolve_model
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests import runs, safetensors
from tests.hub import MODEL, REVISION
from tests.quantized import write_gguf

UNET = "model.diffusion_model.input_blocks.0.0.weight"
SHAPES = BUNDLED_FOLDER / "shapes"


def _save(file: Path, *names: str, **metadata: str) -> Path:
    texts = {key.replace("__", "."): value for key, value in metadata.items()}
    save_file({name: np.ones(2, np.float32) for name in names}, file, texts or None)
    return file


def _change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | values))


def _config(folder: Path, scheduler: str = "DDIMScheduler", **values: object) -> str:
    """The bundled model with another scheduler."""
    shutil.copytree(SHAPES, folder)
    _change(folder / "scheduler/scheduler_config.json", _class_name=scheduler, **values)
    _change(folder / "model_index.json", scheduler=["diffusers", scheduler])
    return str(folder)


def _refusal(name: object, config: str | None = "bundled:shapes", **settings: object) -> str:
    model = {"id": str(name), "config": config, **settings}
    with pytest.raises(BadInput) as caught:
        locate_model(ModelSettings.model_validate(model))
    return str(caught.value)


def test_a_file_has_the_facts_of_its_configuration_and_a_digest_of_both(tmp_path: Path) -> None:
    file = _save(tmp_path / "a.safetensors", "any.weight")
    model = ModelSettings(id=str(file), config="bundled:shapes")
    _, facts = locate_model(model)
    _, folder = locate_model(ModelSettings(id="bundled:shapes"))
    assert (facts.pipeline, facts.width) == (folder.pipeline, folder.width)
    _save(file, "other.weight")
    on_hub = model.model_copy(update={"config": MODEL, "revision": REVISION})
    other_commit = on_hub.model_copy(update={"revision": "f" * 40})
    digests = {facts.digest, *map(model_digest, (model, on_hub, other_commit))}
    assert len(digests) == 4


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    pickle = tmp_path / "a.ckpt"
    pickle.write_bytes(b"\x80\x04.")
    assert "is a pickle, which can run code" in _refusal(pickle)
    file = _save(tmp_path / "a.safetensors", UNET)
    assert "is one file with weights alone. Set model.config to" in _refusal(file, None)
    assert "has no variants" in _refusal(file, variant="fp16")
    assert "Copy it to a folder or volume" in _refusal("s3://bucket/a.safetensors")
    assert "model.config is for a model in one" in _refusal("bundled:shapes", "x/y")
    with pytest.raises(Missing, match="no such model file"):
        locate_model(ModelSettings(id="models/none.safetensors", config="bundled:shapes"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("lora_unet_mid_block.lora_down.weight", "is a LoRA, not a model that draws"),
        ("control_model.input_hint_block.0.weight", "is a ControlNet, not a model that draws"),
        ("decoder.mid.block_1.conv1.weight", "is a VAE, not a model that draws"),
        ("emb_params", "is an embedding, not a model that draws"),
        ("model.diffusion_model.out.2.scale_weight", "is quantized (it has model.diffusion_model."),
        ("scaled_fp8", "is quantized (it has scaled_fp8)"),
        ("transformer_blocks.0.attn.to_q.wscales", "is quantized (it has transformer_blocks."),
    ],
)
def test_a_file_of_another_kind_or_in_quantized_weights_is_not_taken_for_a_model(
    name: str, sentence: str, tmp_path: Path
) -> None:
    assert sentence in _refusal(_save(tmp_path / "a.safetensors", name))


@pytest.mark.parametrize(
    ("values", "method"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq)"),
        ({"quantization_config": {"quant_method": "modelopt"}}, "modelopt: its state is a pickle)"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8: its kernels are code on a hub)"),
        ({"text_config": {"quantization_config": {"quant_method": "torchao"}}}, "torchao)"),
        ({"quantization": {"quant_algo": "NVFP4"}}, "NVFP4)"),
    ],
)
def test_a_component_in_weights_that_are_not_loaded_is_refused_at_planning(
    values: dict[str, object], method: str, tmp_path: Path
) -> None:
    folder = _config(tmp_path / "model")
    _change(tmp_path / "model/text_encoder/config.json", **values)
    assert f"text_encoder: config.json: is quantized ({method}, and" in _refusal(folder, None)


def test_what_torchao_would_call_is_a_class(tmp_path: Path) -> None:
    folder = _config(tmp_path / "model")
    kind = {"_type": "Int8WeightOnlyConfig", "_data": {"granularity": {"_type": "quantize_"}}}
    config = {"quant_method": "torchao", "quant_type": {"default": kind}}
    _change(tmp_path / "model/unet/config.json", quantization_config=config)
    assert "unet: config.json: quantize_ is no class of torchao's" in _refusal(folder, None)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "torchao"},
        {"quant_method": "sdnq"},
        {"load_in_4bit": True},
    ],
)
def test_a_quantized_denoiser_is_neither_quantized_again_nor_changed_by_loras(
    config: dict[str, object], tmp_path: Path
) -> None:
    folder = _config(tmp_path / "model")
    _change(tmp_path / "model/unet/config.json", quantization_config=config)
    prompts = runs.write_prompts(tmp_path / "prompts.parquet")
    lora = {"id": str(safetensors.write(tmp_path / "style.safetensors"))}
    for changes, setting in (
        ({"speed": {"quantization": "fp8"}}, r"speed\.quantization: fp8"),
        ({"speed": {"quantization": "nvfp4"}}, r"speed\.quantization: nvfp4"),
        ({"loras": {"style": lora}}, r"model\.loras"),
    ):
        speed = changes.pop("speed", {})
        model = {"id": folder, "dtype": "bfloat16", **changes}
        job = runs.job(prompts, str(tmp_path / "out"), model=model, speed=speed)
        with pytest.raises(BadInput, match=f"^{setting} does not work with .* quantized already"):
            resolve_model(job)


def _gguf(file: Path, *names: str) -> Path:
    arrays = {name: np.ones((2, 32), np.float32) for name in names}
    return write_gguf(file, arrays)


def test_a_gguf_file_is_weighed_with_the_networks_that_it_lacks(tmp_path: Path) -> None:
    file = _gguf(tmp_path / "a.gguf", "double_blocks.0.img_attn.proj.weight")
    _, facts = locate_model(ModelSettings(id=str(file), config="bundled:shapes"))
    assert facts.quantization == "gguf"
    others = [*SHAPES.glob("vae/*.safetensors"), *SHAPES.glob("text_encoder/*.safetensors")]
    sizes = file.stat().st_size + 2 * sum(other.stat().st_size for other in others)
    assert facts.weights is not None
    assert file.stat().st_size < facts.weights.total <= sizes


def test_a_gguf_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    file = _gguf(tmp_path / "a.gguf", "any.weight")
    assert "is one file with weights alone. Set model.config to" in _refusal(file, None)
    encoder = _gguf(tmp_path / "llama.gguf", "blk.0.attn_q.weight")
    assert "is a text encoder, not a model that draws" in _refusal(encoder)


@pytest.mark.parametrize("end", range(0, 120, 7))
def test_a_gguf_file_that_is_cut_short_is_refused(end: int, tmp_path: Path) -> None:
    file = _gguf(tmp_path / "a.gguf", "any.weight", "other.weight")
    file.write_bytes(file.read_bytes()[:end])
    assert "a.gguf is not a complete GGUF file of version 2 or 3. Fetch it" in _refusal(file)


@pytest.mark.parametrize("place", [8, 16, 24])
def test_a_gguf_file_that_counts_too_much_is_refused_at_once(place: int, tmp_path: Path) -> None:
    file = _gguf(tmp_path / "a.gguf", "any.weight")
    content = file.read_bytes()
    file.write_bytes(content[:place] + b"\xff" * 8 + content[place + 8 :])
    assert "is not a complete GGUF file" in _refusal(file)


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
    ("names", "metadata", "scheduler", "predicted"),
    [
        (("v_pred",), {}, "FlowMatchEulerDiscreteScheduler", "v_prediction"),
        ((), {"modelspec__prediction_type": "flow"}, "DDIMScheduler", "flow_prediction"),
        (("edm_vpred.sigma_max",), {}, "EulerDiscreteScheduler", "by the noise levels of EDM"),
    ],
)
def test_a_configuration_that_cannot_draw_as_the_file_says_is_refused(
    names: tuple[str, ...],
    metadata: dict[str, str],
    scheduler: str,
    predicted: str,
    tmp_path: Path,
) -> None:
    file = _save(tmp_path / "a.safetensors", UNET, *names, **metadata)
    sentence = f"says that it predicts {predicted}, and scheduler/scheduler_config.json"
    assert sentence in _refusal(file, _config(tmp_path / "config", scheduler))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("base_model.model.a.lora_A.weight",), "is peft's own file, whose scale is in adapter_"),
        (("a.hada_w1_a", "a.hada_w2_a"), "is a LoHa, not a plain LoRA"),
        (("a.lora_up.weight", "a.dora_scale"), "is a DoRA, not a plain LoRA"),
        (("a.lora_down.weight", "b.diff"), "has b.diff, one of 1 tensors that no layer"),
        (("a.lora_up.weight", "a.lora_mid.weight"), "has a.lora_mid.weight, one of 1 tensors"),
        ((UNET,), "is a whole model, not a plain LoRA"),
    ],
)
def test_what_would_not_be_applied_of_a_lora_is_refused_at_planning(
    names: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    name = "adapter_model" if names[0].startswith("base_model") else "style"
    file = _save(tmp_path / f"{name}.safetensors", *names)
    model = ModelSettings(id="bundled:shapes", loras={"style": LoraSettings(id=str(file))})
    with pytest.raises(BadInput, match=rf"^model\.loras\.style: {name}\.safetensors {problem}"):
        load_lora_facts(model)
