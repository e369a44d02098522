"""Models whose weights somebody has quantized: drawn as their files say, or refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int8WeightOnlyConfig,
    PerTensor,
)

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion import loading
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.loading import load_network
from tests import altered, eighths, models, quantized, runs
from tests.drawing import pixels_of

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore:Stored version is not the same:UserWarning"),
]
TRANSFORMER = diffusers.FluxTransformer2DModel


def _require_near_plain(tmp_path: Path, folder: Path) -> None:
    plain = quantized.pixels_of_job(tmp_path / "plain", id=str(models.folder("flux")))
    pixels = quantized.pixels_of_job(tmp_path / "quantized", id=str(folder))
    assert 0 < np.abs(pixels - plain).mean() < 8


@pytest.mark.parametrize(
    "config",
    [
        Int8WeightOnlyConfig(),
        pytest.param(Float8WeightOnlyConfig(), marks=pytest.mark.slow),
    ],
)
def test_a_denoiser_that_torchao_has_quantized_goes_through_a_whole_job(
    config: object, tmp_path: Path
) -> None:
    folder = quantized.denoiser_in_torchao(tmp_path / "model", config)
    _require_near_plain(tmp_path, folder)


def test_a_text_encoder_that_torchao_has_quantized_is_read(tmp_path: Path) -> None:
    config = transformers.TorchAoConfig(Int8WeightOnlyConfig())
    folder = quantized.encoder_in(tmp_path / "model", config)
    _require_near_plain(tmp_path, folder)


def test_a_text_encoder_in_nf4_goes_through_a_whole_job(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="its users install it themselves")
    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    folder = quantized.encoder_in(tmp_path / "model", config)
    _require_near_plain(tmp_path, folder)


Change = Callable[[dict[str, torch.Tensor]], None]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (altered.without("to_q._weight_scale"), r"its files lack .*attn\.to_q\.weight"),
        (altered.without("to_q.bias"), r"its files lack .*attn\.to_q\.bias"),
        (altered.adding("sharpener.weight"), r"no place for sharpener\.weight"),
        (altered.adding("sharpener._weight_qdata"), r"no place for sharpener\.weight"),
    ],
)
def test_quantized_weights_are_read_whole_or_not_at_all(
    change: Change, sentence: str, tmp_path: Path
) -> None:
    folder = quantized.denoiser_in_torchao(tmp_path / "model", Int8WeightOnlyConfig())
    file = folder / "transformer/diffusion_pytorch_model.safetensors"
    with safe_open(file, framework="pt") as tensors:
        content = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        metadata = tensors.metadata()
    change(content)
    save_file(content, file, metadata)
    with pytest.raises(ValueError, match=sentence):
        load_network(TRANSFORMER, folder / "transformer", dtype=torch.bfloat16)


def _said_to_be_quantized(tmp_path: Path, **config: object) -> Path:
    folder = tmp_path / "transformer"
    shutil.copytree(models.folder("flux") / "transformer", folder)
    path = folder / "config.json"
    values = json.loads(path.read_bytes())
    path.write_text(json.dumps({**values, "quantization_config": config}))
    return folder


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(loading, "import_module", fail)
    folder = _said_to_be_quantized(tmp_path, load_in_4bit=True)
    with pytest.raises(BadInput) as caught:
        load_network(TRANSFORMER, folder)
    assert str(caught.value) == (
        "transformer: is quantized, and its package bitsandbytes does not load (No module named "
        "'bitsandbytes'). Type: pip install bitsandbytes."
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_denoiser_in_4_bits_of_bitsandbytes_asks_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "import_module", lambda _: None)
    folder = _said_to_be_quantized(tmp_path, quant_method="bitsandbytes", load_in_4bit=True)
    with pytest.raises(BadInput, match=r"by bitsandbytes, which needs a GPU for this network\."):
        load_network(TRANSFORMER, folder)


def test_images_whose_activations_share_a_scale_are_drawn_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eighths.emulate(monkeypatch)
    pipe = models.pipe("flux").to(torch.bfloat16)
    config = Float8DynamicActivationFloat8WeightConfig(granularity=PerTensor())
    pipe.transformer = TRANSFORMER.from_pretrained(
        models.folder("flux") / "transformer",
        quantization_config=diffusers.TorchAoConfig(config),
        dtype=torch.bfloat16,
    )
    rows = [runs.image_row("a red circle", 0), runs.image_row("a blue square on a wall", 1)]
    alone = pixels_of(Denoiser(pipe), rows[:1], 1)[0]
    assert np.array_equal(pixels_of(Denoiser(pipe), rows, 2)[0], alone)
