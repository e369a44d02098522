import json
import shutil
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.component_files import weights_digest
from imagekiln.steps.models.facts import locate_model, model_digest
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests.jobs import files, plan

SHAPES = BUNDLED_FOLDER / "shapes"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the bundled model."""
    return Path(shutil.copytree(SHAPES, tmp_path / "model"))


def _model(name: object) -> ModelSettings:
    return ModelSettings(id=str(name))


def _error_message(name: object) -> str:
    with pytest.raises(BadInput) as caught:
        locate_model(_model(name))
    return str(caught.value)


def _configured(
    target: Path, pipeline: str = "AnyPipeline", /, **configurations: dict[str, object]
) -> Path:
    """A model of nothing but its configuration."""
    components = {name: ["diffusers", "Any"] for name in configurations}
    _write(target / "model_index.json", {"_class_name": pipeline, **components})
    for name, configuration in configurations.items():
        _write(target / name / "config.json", configuration)
    return target


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def test_digest_follows_from_the_files_and_not_from_where_they_lie(
    folder: Path, tmp_path: Path
) -> None:
    elsewhere = Path(shutil.copytree(folder, tmp_path / "deep" / "other name"))
    link = tmp_path / "link"
    link.symlink_to(folder)
    digests = {
        weights_digest(_model(name))
        for name in (folder, f"{folder}/", elsewhere, link, "bundled:shapes")
    }
    assert len(digests) == 1


def test_every_file_that_decides_pixels_changes_the_digest(folder: Path) -> None:
    all_digests = {weights_digest(_model(folder))}
    deciding = [name for name in files(folder) if not name.endswith(".md")]
    assert len(deciding) >= 10
    for name in deciding:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        all_digests.add(weights_digest(_model(folder)))
        (folder / name).write_bytes(content)
    assert len(all_digests) == 1 + len(deciding)


def test_variant_is_a_part_of_the_digest(folder: Path) -> None:
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    shutil.copy(weights, weights.with_name("diffusion_pytorch_model.fp16.safetensors"))
    plain = _model(folder)
    digests = [
        locate_model(plain.model_copy(update={"variant": variant}))[1].digest
        for variant in (None, "fp16")
    ]
    assert digests[0] == weights_digest(plain)
    assert digests[0] != digests[1]
    hub = ModelSettings(id="org/name", revision="0" * 40, variant="fp16")
    assert model_digest(hub) == f"org/name#fp16@{'0' * 40}"


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".BIN"])
def test_pickled_weights_are_refused(folder: Path, suffix: str) -> None:
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(suffix))
    assert _error_message(folder) == (
        f"{folder}: unet/diffusion_pytorch_model{suffix} is a pickle, which can run code. "
        "Convert it to safetensors."
    )


@pytest.mark.parametrize("name", ["nowhere", "/nowhere/at/all", "./a/b"])
def test_model_that_is_nowhere_is_told_so(name: str) -> None:
    with pytest.raises(Missing) as caught:
        locate_model(_model(name))
    assert (
        str(caught.value)
        == f"{name}: no such model folder. Write a folder, or a hub id as org/name."
    )


VAE8: dict[str, object] = {"block_out_channels": [1, 2, 3, 4], "latent_channels": 4}


DC: dict[str, object] = {"encoder_block_out_channels": [1, 2, 3, 4, 5, 6], "latent_channels": 32}


@pytest.mark.parametrize(
    ("pipeline", "configurations", "side", "multiple"),
    [
        ("Any", {"unet": {"sample_size": 128, "in_channels": 4}, "vae": VAE8}, 1024, 8),
        (
            "Any",
            {"transformer": {"patch_size": 2, "in_channels": 64}, "vae": {"z_dim": 16}},
            1024,
            16,
        ),
        ("Any", {}, 1024, 8),
        ("AuraFlow", {"transformer": {"sample_size": 64, "patch_size": 2}, "vae": VAE8}, 1024, 16),
        ("HunyuanImage", {"transformer": {"patch_size": [1, 1]}, "vae": {}}, 2048, 64),
        ("SanaSprint", {"transformer": {"sample_size": 32, "patch_size": 1}, "vae": DC}, 1024, 32),
    ],
)
def test_sizes_are_read_from_the_configuration_or_known_by_family(
    tmp_path: Path,
    pipeline: str,
    configurations: dict[str, dict[str, object]],
    side: int,
    multiple: int,
) -> None:
    facts = locate_model(_model(_configured(tmp_path, f"{pipeline}Pipeline", **configurations)))[1]
    assert (facts.width, facts.height, facts.size_multiple) == (side, side, multiple)


@pytest.mark.parametrize(
    ("pipeline", "why"),
    [
        ("StableDiffusionXLImg2ImgPipeline", "needs input other than text. Choose a text-to-im"),
        ("KandinskyV22Pipeline", "is one stage of a model that draws in several. Choose a single-"),
        ("KandinskyV22CombinedPipeline", "draws in several stages, to which a row's sampler can"),
    ],
)
def test_a_pipeline_that_draws_from_no_text_alone_is_refused_at_planning(
    tmp_path: Path, pipeline: str, why: str
) -> None:
    folder = _configured(tmp_path / "model", pipeline, unet={}, vae=VAE8)
    with pytest.raises(BadInput, match=f"is a {pipeline}, which {why}"):
        plan(tmp_path, {"prompt": ["a"]}, model={"id": str(folder)})
