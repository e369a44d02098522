"""Which placement of a model's weights fits a GPU, and what is said of one that has no room."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import diffusers
import pytest
import torch
import transformers
from huggingface_hub.utils import TensorInfo  # type: ignore[attr-defined]  # not marked so

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion import pipeline
from imagekiln.steps.generate.diffusion.pipeline import decide_placement
from imagekiln.steps.generate.diffusion.quantization import quantizable_layers
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.facts import locate_model
from imagekiln.steps.models.placement import (
    GIB,
    WeightSizes,
    choose_placement,
    measure_tensors,
    needed_bytes,
)
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from imagekiln.workflows.cli.text import format_estimate
from tests import families
from tests.hub import MODEL, REVISION, serving_model
from tests.models import folder, pipe
from tests.runs import job, planned, write_prompts

SD = {"id": str(folder("sd")), "dtype": "float32"}
# GiB that the cards report: the makers' 141, 80, 48 and 24 GB.
H200, H100, L40S, L4 = 139.8, 79.1, 44.4, 22.0


def _headers(network: torch.nn.Module) -> dict[str, TensorInfo]:
    state = network.state_dict().items()
    return {name: TensorInfo("BF16", [*each.shape], (0, 0)) for name, each in state}


@cache
def _flux2_dev() -> WeightSizes:
    """The weights of FLUX.2-dev, by the configurations of its networks, without their numbers."""
    with torch.device("meta"):
        networks = {
            "transformer": diffusers.Flux2Transformer2DModel(),
            "text_encoder": transformers.Mistral3ForConditionalGeneration(
                transformers.Mistral3Config()
            ),
            "vae": diffusers.AutoencoderKLFlux2(),
        }
    sizes = [measure_tensors(name, _headers(each), 2) for name, each in networks.items()]
    return sum(sizes, WeightSizes())


def _job(**speed: object) -> Job:
    model = {"id": "flux", "dtype": "bfloat16"}
    return job(Path("prompts.parquet"), "out", model=model, speed=speed)


def test_flux2_dev_has_the_size_that_its_files_have() -> None:
    sizes = _flux2_dev()
    assert sizes.denoiser == pytest.approx(64.4e9, rel=0.01)
    assert sizes.texts == pytest.approx(48e9, rel=0.02)
    assert sizes.in_fp8().denoiser == pytest.approx(33e9, rel=0.01)


@pytest.mark.parametrize(
    ("gib", "quantization", "placement"),
    [
        (H200, "none", "resident"),
        (H200, "fp8", "resident"),
        (95.0, "none", "texts_first"),
        (95.0, "fp8", "resident"),
        (H100, "none", "texts_first"),
        (H100, "fp8", "texts_first"),
        (L40S, "none", "offload"),
        (L40S, "fp8", "offload"),
        (L4, "none", "offload"),
    ],
)
def test_flux2_dev_is_placed_by_the_card(gib: float, quantization: str, placement: str) -> None:
    sizes = _flux2_dev()
    if quantization == "fp8":
        sizes = sizes.in_fp8()
    assert choose_placement(_job(quantization=quantization), [sizes], gib) == placement


def test_own_choice_counts_as_long_as_the_weights_alone_fit() -> None:
    sizes = [WeightSizes(texts=10 * GIB, denoiser=20 * GIB, others=GIB, largest=GIB)]
    for gib, forced in ((31.0, "resident"), (21.0, "texts_first"), (80.0, "offload")):
        assert choose_placement(_job(placement=forced), sizes, gib) == forced
        assert choose_placement(_job(placement=forced), sizes, None) == forced
    with pytest.raises(BadInput, match=r"take 31\.0 GiB.*placement resident, 31\.0 GiB .*30\.9"):
        choose_placement(_job(placement="resident"), sizes, 30.9)
    assert choose_placement(_job(), sizes, None) is None
    assert choose_placement(_job(), [], 80.0) is None


def test_second_model_of_a_pass_stays_while_the_first_encodes() -> None:
    one = WeightSizes(texts=10, denoiser=20, others=1, largest=2)
    other = WeightSizes(texts=40, denoiser=5, others=1, largest=3)
    assert needed_bytes("resident", [one, other]) == 77
    assert needed_bytes("texts_first", [one, other]) == 2 + 20 + 40
    assert needed_bytes("offload", [one, other]) == 2 + 2 * 3


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", sorted(families.MAKE))
def test_layers_that_fp8_halves_are_known_from_their_names(kind: str) -> None:
    network = families.pipe(kind)
    denoiser = getattr(network, "unet", None) or network.transformer
    halved = [denoiser.get_submodule(name) for name in quantizable_layers(denoiser)]
    measured = measure_tensors("transformer", _headers(denoiser), 2)
    expected = sum(2 * layer.weight.numel() for layer in halved)
    assert expected <= measured.quantizable <= 1.4 * expected  # a refiner of texts is not repeated


def _weights(**settings: str) -> WeightSizes:
    weights = locate_model(ModelSettings.model_validate(settings))[1].weights
    assert weights is not None
    return weights


def test_weights_have_the_size_that_they_take_once_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = pipe("sd")

    def parameters(name: str) -> int:
        return sum(weight.numel() for weight in getattr(loaded, name).parameters())

    in_float32 = _weights(**SD)
    assert in_float32.denoiser == 4 * parameters("unet")
    assert in_float32.others == 4 * parameters("vae")
    # Beside indexes of positions.
    assert in_float32.texts == pytest.approx(4 * parameters("text_encoder"), rel=0.01)
    in_bfloat16 = _weights(**{**SD, "dtype": "bfloat16"})
    assert in_bfloat16.total == pytest.approx(in_float32.total / 2, rel=0.01)
    with serving_model(folder("sd"), tmp_path, monkeypatch):  # by their headers
        assert _weights(id=MODEL, revision=REVISION, dtype="float32") == in_float32


def test_model_that_no_gpu_of_the_profile_has_room_for_is_refused_in_planning(
    tmp_path: Path,
) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet")
    asked = job(prompts, str(tmp_path / "out"), model=SD, cluster={"profile": "l4"})
    estimated = estimate(asked, gpu_memory=24)
    assert estimated.weights_bytes == _weights(**SD).total
    assert estimated.placement == "resident"
    assert "once loaded, all on the GPU" in format_estimate(estimated)
    sentence = (
        r"weights of the job's models take 0\.0 GiB\. With speed\.placement offload, 0\.0 GiB of "
        r"them .*, and the GPU of its profile has 0\.0 GiB, .*Choose a larger GPU .*model\.dtype"
    )
    for check in (make_plan, estimate):
        with pytest.raises(BadInput, match=sentence):
            check(asked, gpu_memory=1e-4)
    assert not (tmp_path / "out").exists()


def test_model_larger_than_the_gpu_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, str(tmp_path / "out"), [{"prompt": "x"}]).plan
    weights = WeightSizes(denoiser=100 * GIB, largest=50 * GIB)
    plan = replace(plan, model=replace(plan.model, weights=weights))
    monkeypatch.setattr(pipeline, "device_memory", lambda _: 79 * GIB)
    with pytest.raises(BadInput, match=r"take 100\.0 GiB.* offload, 100\.0 GiB .* has 79\.0 GiB"):
        decide_placement(plan)
