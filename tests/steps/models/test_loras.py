import hashlib
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.generate.diffusion.pipeline import fetch_run_models
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.families import FAMILIES, require_pipeline_support
from imagekiln.steps.models.loras import (
    LoraFacts,
    LoraRejectionReason,
    ParsedLoras,
    fetch_planned_lora,
    load_lora_facts,
    lora_key,
    parse_loras,
)
from tests import runs, safetensors
from tests.hub import MODEL, REVISION, serving_model

KNOWN = {"style", "detail", "A.b-c_1", "x1"}
DIGESTS = {"style": "bb", "detail": "aa", "same": "bb"}
NO_SAFETENSORS = "is not a safetensors file, so it may hold code. Convert it."


@pytest.mark.parametrize(
    ("text", "canonical_text"),
    [("style", "style:1"), ("style:1e-7", "style:1e-07"), (" \n", None)],
)
def test_texts_that_ask_for_the_same_have_one_canonical_form(
    text: str, canonical_text: str | None
) -> None:
    assert parse_loras(text, KNOWN) == ParsedLoras(canonical_text)
    assert parse_loras(canonical_text or "", KNOWN) == ParsedLoras(canonical_text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("other:1", "unknown"),
        ("style:", "syntax"),
        ("style,style", "twice"),
        ("style:11", "weight"),
        ("x" * 1001, "many"),
    ],
)
def test_what_cannot_be_meant_is_a_fault(text: str, fault: LoraRejectionReason) -> None:
    assert parse_loras(text, KNOWN) == ParsedLoras(rejection=fault)


def test_a_key_tells_files_and_weights_and_no_names() -> None:
    assert lora_key("detail:0.5,style:0.8", DIGESTS) == "aa:0.5,bb:0.8"
    assert lora_key("style:1", DIGESTS) == lora_key("same:1", DIGESTS) == "bb:1"
    assert lora_key("same:0.5,style:1", DIGESTS) == lora_key("same:1,style:0.5", DIGESTS)


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
    return str(caught.value).removeprefix("model.loras.style: ").replace(str(file), "FILE")


def test_a_lora_is_known_by_the_bytes_of_its_file_and_not_by_its_place(tmp_path: Path) -> None:
    one = safetensors.write(tmp_path / "a.safetensors")
    other = safetensors.write(tmp_path / "folder" / "b.safetensors")
    facts = _facts(one)
    assert facts == _facts(other) == _facts(other.parent) == _facts(other.parent, "b.safetensors")
    assert facts.sha256 == hashlib.sha256(one.read_bytes()).hexdigest()
    assert facts.tensors == hashlib.sha256(b"\1\2\3\4").hexdigest()  # what follows the header
    assert _facts(safetensors.write(tmp_path / "c.safetensors", data=b"\1\2\3\5")) != facts


@pytest.mark.parametrize("name", ["style.pt", "style.ckpt", "style"])
def test_a_file_that_may_hold_code_is_refused(tmp_path: Path, name: str) -> None:
    safetensors.write(tmp_path / name)
    assert _error_message(tmp_path / name) == f"{name} {NO_SAFETENSORS}"
    assert _error_message(tmp_path, name) == f"{name} {NO_SAFETENSORS}"


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
    sentence = "style.safetensors is not a complete safetensors file. Fetch it again."
    assert _error_message(file) == sentence


def test_a_folder_must_say_which_file_is_meant(tmp_path: Path) -> None:
    assert "FILE has 0 safetensors files. Choose one by weight_name." in _error_message(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        safetensors.write(tmp_path / name)
    assert "FILE has 2 safetensors files. Choose one by weight_name." in _error_message(tmp_path)
    assert _facts(tmp_path, "b.safetensors") == _facts(tmp_path / "b.safetensors")
    assert "does not exist" in _error_message(tmp_path, "c.safetensors", Missing)
    assert "does not exist" in _error_message(tmp_path / "nowhere", kind=Missing)


@pytest.mark.parametrize("pipeline", sorted(FAMILIES))
def test_families_that_take_no_lora_are_refused_at_planning(pipeline: str, tmp_path: Path) -> None:
    import diffusers

    model = _model(str(tmp_path / "style.safetensors")).model_dump()
    job = runs.job(tmp_path / "prompts.parquet", "out", model=model)
    if hasattr(getattr(diffusers, pipeline), "load_lora_weights"):
        require_pipeline_support(job, pipeline)
    else:
        with pytest.raises(BadInput, match=rf"^model\.loras does not work with {pipeline}\. "):
            require_pipeline_support(job, pipeline)


@pytest.mark.parametrize(
    ("file", "revision", "message"),
    [
        (None, REVISION, f".weight_name is missing: name the safetensors file at {MODEL}."),
        ("a.safetensors", None, ".revision is not a commit: pin"),
        ("a.bin", REVISION, f": a.bin {NO_SAFETENSORS}"),
    ],
)
def test_a_hub_lora_must_be_one_file_of_one_commit(
    file: str | None, revision: str | None, message: str
) -> None:
    with pytest.raises(BadInput) as caught:
        load_lora_facts(_model(MODEL, file, revision))
    assert str(caught.value).startswith(f"model.loras.style{message}")


def test_fetch_brings_a_run_s_hub_loras_to_where_no_hub_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = safetensors.write(tmp_path / "repository" / "style.safetensors")
    model = _model(MODEL, file.name, REVISION).model_dump()
    with serving_model(file.parent, tmp_path, monkeypatch):
        planned_run = runs.planned(tmp_path, str(tmp_path / "out"), model=model)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "volume"))
        fetch_run_models(planned_run.uri)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (lora,) = planned_run.plan.job.model.loras.values()
    path = fetch_planned_lora("style", lora, planned_run.plan.loras["style"].sha256)
    assert path.is_relative_to(tmp_path / "volume")
    assert path.read_bytes() == file.read_bytes()
