"""The private parts of torch, diffusers and peft in use are still as the product expects."""

import inspect
import re
from pathlib import Path

import diffusers
import pytest
import torch
from safetensors.torch import load_file

from imagekiln.steps.generate.diffusion import patches
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.variants import make_scheduler
from tests import models
from tests.drawing import bytes_of
from tests.runs import image_row
from tests.single_file import write_checkpoint

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)


class Doubled(torch.nn.Module):
    """Doubles its input."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value * 2


def test_a_replaced_method_is_called_in_the_block_and_gone_after_it() -> None:
    module = Doubled()
    with patches.replaced_method(module, "forward", abs):
        assert module(torch.tensor(-3)) == 3
    assert module(torch.tensor(-3)) == -6
    assert "forward" not in vars(module)


def test_sd3_s_controlnet_pipeline_samples_control_images_without_a_generator() -> None:
    source = inspect.getsource(diffusers.StableDiffusion3ControlNetPipeline)
    assert ".encode(control_image).latent_dist.sample()" in source


@pytest.mark.parametrize(
    ("pipeline", "parameters"),
    [
        ("StableDiffusionPipeline", 5),
        ("StableDiffusionXLPipeline", 5),
        ("StableDiffusion3Pipeline", 5),
        ("FluxPipeline", 4),
    ],
)
def test_pipelines_prepare_the_embeddings_of_an_ip_adapter_by_known_arguments(
    pipeline: str, parameters: int
) -> None:
    expected = [
        "ip_adapter_image",
        "ip_adapter_image_embeds",
        "device",
        "num_images_per_prompt",
        "do_classifier_free_guidance",
    ]
    prepare = getattr(diffusers, pipeline).prepare_ip_adapter_image_embeds
    assert [*inspect.signature(prepare).parameters][1:] == expected[:parameters]


def test_each_network_of_a_model_in_one_file_is_checked_once_it_is_filled(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path / "model.safetensors")
    sizes: list[int] = []

    def check(network: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
        assert not any(each.is_meta for each in network.parameters())
        sizes.append(sum(map(torch.numel, tensors.values())))

    with patches.checked_conversion(check):
        diffusers.StableDiffusionPipeline.from_single_file(
            str(file), config=str(models.folder("sd")), local_files_only=True
        )
    assert len(sizes) == 3
    assert sum(sizes) == sum(map(torch.numel, load_file(file).values()))


def test_private_names_of_libraries_appear_in_this_module_alone() -> None:
    folder = Path(inspect.getfile(patches)).parent
    private = (
        "_compiled_call_impl",
        "_repeated_blocks",
        "_pack_latents",
        "_lora_loadable_modules",
        "load_model_dict_into_meta",
    )
    modules = {
        path.name for path in folder.glob("*.py") if any(n in path.read_text() for n in private)
    }
    assert modules == {"patches.py"}
    text = "".join(path.read_text() for path in folder.glob("*.py") if path.name != "patches.py")
    assert not re.search(r"^ *(from|import) torch\S*\._", text, re.MULTILINE)


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
@pytest.mark.parametrize("sampler", ["ddim", "ddpm", "pndm", "lcm"])
def test_timesteps_of_the_host_give_equal_bytes(
    kind: models.Kind, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [image_row("a red circle", 7, steps=5, sampler=sampler)]
    on_host = bytes_of(Denoiser(models.pipe(kind)), rows, 1)
    monkeypatch.setattr(patches, "WAITING_SCHEDULERS", ())
    assert bytes_of(Denoiser(models.pipe(kind)), rows, 1) == on_host


@pytest.mark.parametrize("sampler", ["ddim", "ddpm", "pndm", "lcm"])
def test_no_step_reads_a_timestep_of_the_device(sampler: str) -> None:
    scheduler = make_scheduler(models.pipe("sd").scheduler, sampler)
    patches.step_on_host(scheduler)
    scheduler.set_timesteps(5)
    steps = len(scheduler.timesteps)
    scheduler.timesteps = scheduler.timesteps.to("meta")  # whose values nobody can read
    sample = torch.zeros(1, 4, 8, 8)
    for _ in range(steps):
        scheduler.step(sample, torch.empty((), device="meta"), sample)
    assert scheduler.timesteps.is_meta
