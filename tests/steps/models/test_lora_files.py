import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.generate.diffusion.pipeline import fetch_run_models
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.families import FAMILIES, require_pipeline_support
from imagekiln.steps.models.loras import LoraFacts, fetch_planned_lora, load_lora_facts
from tests import runs, safetensors
from tests.hub import MODEL, REVISION
from tests.hub import hub as serving

PIN = "model.loras.style.revision is not a commit"
URLS = "{repo_id}/resolve/{revision}/{filename}"


def _facts(file: Path, weight_name: str | None = None) -> LoraFacts:
    return load_lora_facts(_model(str(file), weight_name))["style"]


def _model(name: str, weight_name: str | None = None, revision: str | None = None) -> ModelSettings:
    return ModelSettings(
        id="bundled:shapes",
        loras={"style": LoraSettings(id=name, weight_name=weight_name, revision=revision)},
    )


def _error_message(
    file: Path, weight_name: str | None = None, kind: type[KilnError] = BadInput
) -> str:
    with pytest.raises(kind) as caught:
        _facts(file, weight_name)
    return str(caught.value).replace(str(file), "FILE")


def test_a_lora_is_known_by_the_bytes_of_its_file_and_not_by_its_place(tmp_path: Path) -> None:
    one = safetensors.write(tmp_path / "a.safetensors")
    other = safetensors.write(tmp_path / "folder" / "b.safetensors")
    assert (
        _facts(one)
        == _facts(other)
        == _facts(other.parent)
        == _facts(other.parent, "b.safetensors")
    )
    assert _facts(one).sha256 == hashlib.sha256(one.read_bytes()).hexdigest()
    assert (
        _facts(one).tensors == hashlib.sha256(b"\1\2\3\4").hexdigest()
    )  # all that follows the header
    assert _facts(safetensors.write(tmp_path / "c.safetensors", data=b"\1\2\3\5")) != _facts(one)


@pytest.mark.parametrize("name", ["style.pt", "style.ckpt", "style"])
def test_a_file_that_may_hold_code_is_refused(tmp_path: Path, name: str) -> None:
    safetensors.write(tmp_path / name)
    message = (
        f"model.loras.style: {name} is not a safetensors file, so it may hold code. Convert it."
    )
    assert _error_message(tmp_path / name) == _error_message(tmp_path, name) == message


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"", 0),
        (b"1", None),
        (b'{"a.lora\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}', None),
    ],
)
def test_a_file_that_is_no_safetensors_is_refused(
    tmp_path: Path, header: bytes, length: int | None
) -> None:
    file = safetensors.raw(tmp_path / "style.safetensors", header, length=length)
    assert (
        _error_message(file)
        == "model.loras.style: style.safetensors is not a complete safetensors file. "
        "Fetch it again."
    )


def test_a_folder_must_say_which_file_is_meant(tmp_path: Path) -> None:
    assert (
        _error_message(tmp_path)
        == "model.loras.style: FILE has 0 safetensors files. Choose one by weight_name."
    )
    for name in ("a.safetensors", "b.safetensors"):
        safetensors.write(tmp_path / name)
    assert (
        _error_message(tmp_path)
        == "model.loras.style: FILE has 2 safetensors files. Choose one by weight_name."
    )
    assert _facts(tmp_path, "b.safetensors") == _facts(tmp_path / "b.safetensors")
    assert "does not exist" in _error_message(tmp_path, "c.safetensors", Missing)
    assert "does not exist" in _error_message(tmp_path / "nowhere", kind=Missing)


@pytest.mark.parametrize("pipeline", sorted(FAMILIES))
def test_families_that_take_no_lora_are_refused_at_planning(pipeline: str, tmp_path: Path) -> None:
    import diffusers

    model = _model(str(safetensors.write(tmp_path / "style.safetensors")))
    job = runs.job(tmp_path / "prompts.parquet", "out", model=model.model_dump())
    if hasattr(getattr(diffusers, pipeline), "load_lora_weights"):
        require_pipeline_support(job, pipeline)
    else:
        with pytest.raises(BadInput, match=rf"^model\.loras does not work with {pipeline}\. "):
            require_pipeline_support(job, pipeline)


@pytest.mark.parametrize(
    ("file", "revision", "message"),
    [
        (
            None,
            REVISION,
            f"model.loras.style.weight_name is missing: name the safetensors file at {MODEL}.",
        ),
        (
            "a.safetensors",
            None,
            f"{PIN}: pin {MODEL} to one, 40 hexadecimal digits.",
        ),
        (
            "a.bin",
            REVISION,
            "model.loras.style: a.bin is not a safetensors file, so it may hold code. Convert it.",
        ),
    ],
)
def test_a_hub_lora_must_be_one_file_of_one_commit(
    file: str | None, revision: str | None, message: str
) -> None:
    with pytest.raises(BadInput) as caught:
        load_lora_facts(_model(MODEL, file, revision))
    assert str(caught.value) == message


@pytest.fixture
def hub_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A LoRA that a hub gives as style.safetensors; what it gives is kept in tmp_path's cache."""
    from huggingface_hub import constants

    file = safetensors.write(tmp_path / "repository" / "style.safetensors")
    with serving(file.parent) as planned_run:
        monkeypatch.setattr(constants, "ENDPOINT", planned_run.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{planned_run.endpoint}/{URLS}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield file


def test_fetch_brings_a_run_s_hub_loras_to_where_no_hub_is_needed(
    hub_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    planned_run = runs.planned(
        tmp_path,
        str(tmp_path / "out"),
        model=_model(MODEL, "style.safetensors", REVISION).model_dump(),
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "volume"))
    fetch_run_models(planned_run.uri)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (lora,) = planned_run.plan.job.model.loras.values()
    path = fetch_planned_lora("style", lora, planned_run.plan.loras["style"].sha256)
    assert path.is_relative_to(tmp_path / "volume")
    assert path.read_bytes() == hub_file.read_bytes()


def test_a_dora_is_refused_since_it_would_be_drawn_as_something_else(tmp_path: Path) -> None:
    file = safetensors.write(tmp_path / "style.safetensors", ("a.lora_up.weight", "a.dora_scale"))
    assert "is a DoRA" in _error_message(file)
