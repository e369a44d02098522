"""The denoiser in 8 bits: which layers, on which devices, and no image by its neighbours."""

from pathlib import Path

import numpy as np
import pytest
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion import pipeline, quantization
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network, load_pipeline
from imagekiln.steps.generate.diffusion.quantization import (
    quantizable_layers,
    quantize_denoiser,
    require_quantization_support,
)
from imagekiln.steps.generate.start import generate
from tests import eighths, families, loras, models, plain, runs
from tests.drawing import pixels_of

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]

# Pipelines that no table knows. Of the first two, diffusers names no blocks.
PLAIN = {"bria", "omnigen", "glm", "ideogram4", "krea2"}
ODD = {"chroma"}  # whose tiny layers have sides that float8 cannot hold
MODULATION = ("norm", "_mod.", "modulation", "time_emb")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_where_the_extra_is_missing_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "find_spec", lambda _: None)
    with pytest.raises(
        BadInput, match=r"is fp8, which needs an extra\. Type: pip install 'imagekiln\[fp8\]'"
    ):
        require_quantization_support(CPU, "fp8")


def test_a_pod_without_such_a_gpu_says_so_before_it_loads_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"id": str(models.folder("sd")), "dtype": "bfloat16"}
    there = runs.planned(
        tmp_path, str(tmp_path / "out"), model=model, speed={"quantization": "fp8"}
    )
    monkeypatch.setattr(pipeline, "load_pretrained", None)
    with pytest.raises(BadInput, match="compute capability"):
        generate(there.uri, 0)


@pytest.mark.parametrize(
    ("method", "capability", "minimum"),
    [("fp8", (8, 6), r"8\.9"), ("nvfp4", (9, 0), r"10\.0"), ("nvfp4", (8, 9), r"10\.0")],
)
def test_a_gpu_that_cannot_compute_so_is_refused(
    method: str, capability: tuple[int, int], minimum: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(quantization, "describe_device", lambda _: "a GPU")
    sentence = f"^speed.quantization is {method}, which takes a GPU of .* {minimum} or more, and"
    with pytest.raises(BadInput, match=sentence):
        require_quantization_support(CUDA, method)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (10, 0))
    require_quantization_support(CUDA, method)


def test_nvfp4_has_the_layers_of_fp8_and_no_scale_that_images_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torchao.prototype.mx_formats import inference_workflow
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    monkeypatch.setattr(inference_workflow, "is_sm_at_least_100", lambda: True)
    denoiser = denoiser_network(families.pipe("flux", torch.bfloat16))
    chosen = set(quantizable_layers(denoiser))
    quantize_denoiser(denoiser, "nvfp4")
    weights = {
        name: each.weight for name, each in denoiser.named_modules() if hasattr(each, "weight")
    }
    in_nvfp4 = {name for name, weight in weights.items() if isinstance(weight, NVFP4Tensor)}
    assert in_nvfp4 == chosen
    assert chosen
    for name in chosen:
        assert weights[name].per_tensor_scale is not None
        assert weights[name].act_per_tensor_scale is None
        assert not weights[name].act_quant_kwargs.use_dynamic_per_tensor_scale
        assert not weights[name].act_quant_kwargs.use_triton_kernel


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", sorted({*families.MAKE, *PLAIN} - ODD))
def test_only_layers_of_the_repeated_blocks_that_float8_can_hold_are_changed(kind: str) -> None:
    pipe = (plain if kind in PLAIN else families).pipe(kind)
    denoiser = denoiser_network(pipe)
    chosen = set(quantizable_layers(denoiser))
    assert chosen
    layers = {
        name: each for name, each in denoiser.named_modules() if isinstance(each, torch.nn.Linear)
    }
    assert all(not any(side % 16 for side in layers[name].weight.shape) for name in chosen)
    assert not any(mark in name for name in chosen for mark in MODULATION)
    assert not {
        name
        for name in chosen
        if name.startswith(("proj_out", "x_embedder", "time", "add_embedding", "text", "final"))
    }


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a CPU stand in for such a GPU."""
    eighths.emulate(monkeypatch)


@pytest.mark.quick_cases(2)
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("size", "wide"), [(2, 1), (4, 2)])
@pytest.mark.parametrize("kind", ["sdxl", "flux"])
def test_an_image_in_fp8_is_near_to_that_in_bfloat16_and_knows_no_neighbours(
    kind: str, size: int, wide: int
) -> None:
    rows = [
        runs.image_row(f"a red circle {place}", place, width=16 * wide) for place in range(size)
    ]
    pipe = families.pipe(kind, torch.bfloat16)
    before = pixels_of(Denoiser(pipe), rows, size)
    quantize_denoiser(denoiser_network(pipe), "fp8")
    denoiser = Denoiser(pipe)
    first, *others = rows
    alone = pixels_of(denoiser, [first], size)[0]
    assert not np.array_equal(alone, before[0])
    assert np.abs(alone.astype(int) - before[0]).mean() < 4
    assert np.array_equal(pixels_of(denoiser, [first, *others], size)[0], alone)
    assert np.array_equal(pixels_of(denoiser, [*others, first], size)[-1], alone)


@pytest.mark.usefixtures("emulated")
def test_loras_that_all_rows_share_are_in_the_weights_before_they_are_in_fp8(
    tmp_path: Path,
) -> None:
    style = {"style": {"id": str(loras.folder("sd", 1))}}

    def load(name: str, wanted: str, method: str) -> models.Untyped:
        model = {"id": str(models.folder("sd")), "dtype": "bfloat16", "loras": style}
        there = runs.planned(
            tmp_path / name,
            str(tmp_path / name / "out"),
            model=model,
            speed={"quantization": method},
            defaults={"loras": wanted, "steps": 2, "guidance": 3.0},
        )
        return denoiser_network(load_pipeline(there.plan))

    plain, fused = load("plain", "style:0", "none"), load("fused", "style:8", "none")
    in_fp8 = load("fp8", "style:8", "fp8")
    styled = []
    for name in quantizable_layers(plain):
        of_plain, of_fused, of_fp8 = (
            each.get_submodule(name).weight for each in (plain, fused, in_fp8)
        )
        rounding, style_size = (of_fp8.dequantize() - of_fused).abs(), (of_fused - of_plain).abs()
        assert rounding.mean() > 0
        if style_size.any():
            styled.append(name)
            assert 4 * rounding.mean() < style_size.mean()
    assert styled


@pytest.mark.usefixtures("emulated")
def test_a_plan_in_fp8_loads_a_denoiser_in_fp8_and_leaves_the_rest(tmp_path: Path) -> None:
    from torchao.quantization import Float8Tensor

    model = {"id": str(models.folder("sd")), "dtype": "bfloat16"}
    plan = runs.planned(
        tmp_path, str(tmp_path / "out"), model=model, speed={"quantization": "fp8"}
    ).plan
    pipe = load_pipeline(plan)
    kinds = {
        name: {type(each) for each in getattr(pipe, name).parameters()}
        for name in ("unet", "vae", "text_encoder")
    }
    assert Float8Tensor in kinds["unet"]
    assert kinds["vae"] == kinds["text_encoder"] == {torch.nn.Parameter}
