"""Loading pipelines, and the schedulers behind the samplers' names."""

import json
import shutil
from pathlib import Path

import diffusers
import pytest
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion import pipeline
from imagekiln.steps.generate.diffusion.pipeline import load_pipeline, load_pretrained
from imagekiln.steps.generate.diffusion.variants import make_scheduler
from imagekiln.steps.job.columns import SCHEDULERS
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import WeightsCheck, locate_model
from imagekiln.steps.runs.plan import Plan
from tests import models
from tests.hub import MODEL, REVISION, serving_model
from tests.runs import planned

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)


def _plan(
    tmp_path: Path, model: Path | None = None, dtype: str = "float32", **changes: object
) -> Plan:
    chosen = {"id": str(model or models.folder("sd")), "dtype": dtype}
    return planned(tmp_path, str(tmp_path / "out"), [{"prompt": "a"}], model=chosen, **changes).plan


def _copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(models.folder("sd"), tmp_path / "model"))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_weight_is_of_the_plan_s_dtype_and_no_layer_is_in_training(
    dtype: str, tmp_path: Path
) -> None:
    pipe = load_pipeline(_plan(tmp_path, dtype=dtype))
    networks = [each for each in pipe.components.values() if isinstance(each, torch.nn.Module)]
    assert len(networks) == 3
    assert {weight.dtype for network in networks for weight in network.parameters()} == {
        getattr(torch, dtype)
    }
    assert not any(layer.training for network in networks for layer in network.modules())


def test_a_gpu_without_the_plan_s_dtype_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "choose_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(pipeline, "describe_device", lambda _: "Tesla T4")
    monkeypatch.setattr(pipeline, "device_memory", lambda _: 2**34)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation
    )
    bfloat16, float16 = (
        _plan(tmp_path / "a", dtype="bfloat16"),
        _plan(tmp_path / "b", dtype="float16"),
    )
    looked_for = list[str]()

    def folder(wanted: ModelSettings, _weights: WeightsCheck) -> Path:
        looked_for.append(wanted.dtype)
        return tmp_path

    monkeypatch.setattr(pipeline, "fetch_model", folder)
    with pytest.raises(
        BadInput, match=r"bfloat16, which Tesla T4 does not have\. Set model\.dtype: float16"
    ):
        load_pipeline(bfloat16)
    with pytest.raises(BadInput, match="no such file"):  # since there is nothing in the folder
        load_pipeline(float16)
    assert looked_for == ["float16"]


def test_a_model_whose_files_changed_since_planning_is_refused(tmp_path: Path) -> None:
    model = _copied(tmp_path)
    plan = _plan(tmp_path, model)
    weights = model / "unet" / "diffusion_pytorch_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(
        BadInput, match=r"is not the model that the run was planned with\. Restore it, or plan anew"
    ):
        load_pipeline(plan)


def test_a_variant_is_loaded_from_the_files_that_bear_its_name(tmp_path: Path) -> None:
    model = _copied(tmp_path)
    halved = models.pipe("sd").to(torch.float16)
    with torch.no_grad():
        halved.unet.conv_in.bias.fill_(3.0)
    halved.save_pretrained(model, variant="fp16")
    chosen = {"id": str(model), "dtype": "float32"}
    pipes = [
        load_pipeline(
            planned(
                tmp_path / name,
                str(tmp_path / name / "out"),
                [{"prompt": "a"}],
                model=chosen | changes,
            ).plan
        )
        for name, changes in (("own", {}), ("half", {"variant": "fp16"}))
    ]
    biases = [pipe.unet.conv_in.bias for pipe in pipes]
    assert torch.all(biases[1] == 3)
    assert not torch.equal(biases[0], biases[1])
    assert {pipe.unet.dtype for pipe in pipes} == {torch.float32}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("on_hub", [False, True])
@pytest.mark.parametrize("variant", [None, "fp16"])
@pytest.mark.parametrize("component", ["unet", "text_encoder"])
def test_one_component_may_be_in_several_files_or_alone_have_the_variant(
    component: str,
    variant: str | None,
    on_hub: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _copied(tmp_path)
    pipe = models.pipe("sd")
    network = getattr(pipe, component)
    shutil.rmtree(model / component)
    network.save_pretrained(model / component, max_shard_size="40KB", variant=variant)
    assert len([*(model / component).glob("*-00002-of-*.safetensors")]) == 1
    chosen = ModelSettings(id=str(model), dtype="float32", variant=variant)
    if on_hub:
        chosen = chosen.model_copy(update={"id": MODEL, "revision": REVISION})
    with serving_model(model, tmp_path, monkeypatch):
        _, facts = locate_model(chosen)
        with WeightsCheck(chosen, facts.digest) as check:
            loaded = load_pretrained(chosen, check, facts.pipeline)
    torch.testing.assert_close(
        getattr(loaded, component).state_dict(), network.state_dict(), rtol=0, atol=0
    )
    _, whole = locate_model(ModelSettings(id=str(models.folder("sd")), dtype="float32"))
    assert facts.weights == whole.weights


def test_a_component_with_weights_of_a_variant_alone_is_refused_without_it(tmp_path: Path) -> None:
    model = _copied(tmp_path)
    shutil.rmtree(model / "vae")
    models.pipe("sd").vae.save_pretrained(model / "vae", variant="fp16")
    with pytest.raises(BadInput, match=r"vae has only weights of a variant.*Set model\.variant"):
        locate_model(ModelSettings(id=str(model)))


def test_damaged_weights_are_bad_input_in_one_line(tmp_path: Path) -> None:
    model = _copied(tmp_path)
    weights = model / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(
        BadInput, match=r"model: vae: .+ is not a complete safetensors file\. Fetch it again"
    ) as caught:
        load_pipeline(_plan(tmp_path, model))
    assert len(str(caught.value).splitlines()) == 1


def test_a_pipeline_that_draws_from_more_than_a_text_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(_self: object, prompt: str, image: object) -> None:
        raise AssertionError((prompt, image))

    plan = _plan(tmp_path)
    monkeypatch.setattr(diffusers.StableDiffusionPipeline, "__call__", call)
    with pytest.raises(
        BadInput,
        match=r"is a StableDiffusionPipeline, which does not draw from a text alone \(missing a",
    ):
        load_pipeline(plan)


@pytest.mark.parametrize(
    ("where", "library", "refusal"),
    [
        ("unet/diffusers.py", "diffusers", "unet has code of its own"),
        ("sneaky.py", "sneaky", "has unet: sneaky, Net"),
    ],
)
def test_code_in_a_model_s_folder_is_never_run(
    where: str, library: str, refusal: str, tmp_path: Path
) -> None:
    model, trace = _copied(tmp_path), tmp_path / "was run"
    (model / where).write_text(f"open({str(trace)!r}, 'w').close()\nclass Net:\n    pass\n")
    index = model / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"unet": [library, "Net"]}))
    with pytest.raises(BadInput, match=refusal):
        load_pipeline(_plan(tmp_path, model))
    assert not trace.exists()


@pytest.mark.parametrize("sampler", sorted(set(SCHEDULERS) - {"flow_euler"}))
def test_a_sampler_is_a_scheduler_of_its_own_with_the_model_s_configuration(sampler: str) -> None:
    pipe = models.pipe("sd")
    found = make_scheduler(pipe.scheduler, sampler)
    spec = SCHEDULERS[sampler]
    assert type(found).__name__ == spec.class_name
    assert found is not pipe.scheduler
    assert found.config.beta_schedule == pipe.scheduler.config.beta_schedule == "scaled_linear"
    assert {key: found.config[key] for key in spec.config} == spec.config


@pytest.mark.parametrize(
    ("kind", "sampler", "sentence"),
    [
        ("sd", "flow_euler", "'flow_euler' does not fit this model, which came with DDIMScheduler"),
        (
            "sd3",
            "ddim",
            "'ddim' does not fit this model, which came with FlowMatchEulerDiscreteScheduler",
        ),
        (
            "flux",
            "lcm",
            "'lcm' does not fit this model, which came with FlowMatchEulerDiscreteScheduler",
        ),
    ],
)
def test_a_sampler_that_does_not_fit_the_model_says_so(
    kind: models.Kind, sampler: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_scheduler(models.pipe(kind).scheduler, sampler)
