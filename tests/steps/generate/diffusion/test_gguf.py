"""A denoiser in a GGUF file, with the rest from a pipeline, draws what the pipeline draws."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import SD3Transformer2DModel
from gguf import GGMLQuantizationType as GgmlType

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion import loading
from imagekiln.steps.generate.diffusion.loading import load_gguf
from imagekiln.steps.generate.diffusion.pipeline import fetch_model
from imagekiln.steps.generate.start import generate
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.component_files import read_model_index
from imagekiln.steps.models.facts import WeightsCheck, locate_model
from tests import layouts, models, runs
from tests.hub import MODEL, REVISION, serving_model
from tests.quantized import arrays_of, pixels_of_job, write_gguf

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)
ORIGINAL = "model.diffusion_model."


def _flux(path: Path, kind: GgmlType = GgmlType.Q8_0) -> Path:
    return write_gguf(path, arrays_of(models.pipe("flux").transformer.state_dict()), kind)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", [GgmlType.Q8_0, GgmlType.Q4_0, GgmlType.BF16])
def test_a_file_goes_through_a_whole_job(kind: GgmlType, tmp_path: Path) -> None:
    folder = str(models.folder("flux"))
    file = _flux(tmp_path / "model.gguf", kind)
    plain = pixels_of_job(tmp_path / "plain", id=folder)
    packed = pixels_of_job(tmp_path / "gguf", id=str(file), config=folder)
    assert np.abs(packed - plain).mean() < 8


def test_numbers_that_no_type_packs_draw_the_same_pixels(tmp_path: Path) -> None:
    folder = str(models.folder("flux"))
    file = _flux(tmp_path / "model.gguf", GgmlType.F32)
    plain = pixels_of_job(tmp_path / "plain", id=folder, dtype="float32")
    packed = pixels_of_job(tmp_path / "gguf", id=str(file), config=folder, dtype="float32")
    assert np.array_equal(packed, plain)


def _write_sd3(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """A pipeline, and its denoiser's tensors under the names of the original release."""
    pipe = layouts.sd3()
    pipe.save_pretrained(folder)
    return {
        name.removeprefix(ORIGINAL): array
        for name, array in arrays_of(layouts.sd3_tensors(pipe)).items()
        if name.startswith(ORIGINAL)
    }


@pytest.mark.parametrize("kind", [GgmlType.F32, GgmlType.BF16])
def test_names_of_the_original_release_are_read_and_vectors_are_unpacked(
    kind: GgmlType, tmp_path: Path
) -> None:
    arrays = _write_sd3(tmp_path / "config")
    file = write_gguf(tmp_path / "model.gguf", arrays, kind, flat=True)
    loaded = _load(file, tmp_path / "config")
    original = SD3Transformer2DModel.from_pretrained(tmp_path / "config/transformer")
    for name, held in loaded.named_parameters():
        weight = original.get_parameter(name).to(torch.bfloat16)
        if held.dtype == torch.uint8:  # packed, in a linear layer
            assert torch.equal(held.as_tensor().view(torch.bfloat16), weight), name
        else:
            assert torch.equal(held, weight), name


def _load(file: Path, config: Path) -> models.Untyped:
    index = read_model_index(config, "model")
    return load_gguf(file, config, index, torch.bfloat16)["transformer"]


@pytest.mark.parametrize(
    ("lost", "more", "sentence"),
    [
        ("x_embedder.proj.bias", "", r"not those of a SD3Transformer2DModel \('x_embedder"),
        ("", "sharpener.weight", r"no place for sharpener\.weight"),
    ],
)
def test_a_file_is_read_whole_or_not_at_all(
    lost: str, more: str, sentence: str, tmp_path: Path
) -> None:
    arrays = _write_sd3(tmp_path / "config")
    arrays.pop(lost, None)
    if more:
        arrays[more] = np.ones((3, 5), np.float32)
    file = write_gguf(tmp_path / "model.gguf", arrays)
    with pytest.raises(ValueError, match=sentence):
        _load(file, tmp_path / "config")


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(loading, "import_module", fail)
    file = _flux(tmp_path / "model.gguf")
    with pytest.raises(BadInput, match=r"gguf does not load .*pip install 'imagekiln\[gguf\]'"):
        _load(file, models.folder("flux"))


def test_another_file_than_the_planned_one_is_refused(tmp_path: Path) -> None:
    file = _flux(tmp_path / "model.gguf")
    settings = {"id": str(file), "config": str(models.folder("flux")), "dtype": "bfloat16"}
    there = runs.planned(tmp_path, str(tmp_path / "out"), model=settings)
    assert there.plan.model.quantization == "gguf"
    _flux(file, GgmlType.Q4_0)
    with pytest.raises(BadInput, match="is not the model that the run was planned with"):
        generate(there.uri, 0)


def test_the_rest_comes_from_the_hub_without_the_denoiser_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _flux(tmp_path / "model.gguf")
    model = ModelSettings(id=str(file), config=MODEL, revision=REVISION)
    with serving_model(models.folder("flux"), tmp_path, monkeypatch) as hub:
        _, facts = locate_model(model)
        with WeightsCheck(model, facts.digest) as check:
            folder = fetch_model(model, check)
            check.require_planned()
    assert (folder / "text_encoder_2/model.safetensors").is_file()
    assert not any(name.startswith("transformer/diff") for name in hub.requested_files)
    assert facts.weights is not None
    assert facts.weights.total > file.stat().st_size
