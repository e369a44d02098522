from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import locate_model, model_digest
from tests.hub import MODEL, REVISION


def _checkpoint(path: Path, *names: str) -> str:
    save_file({name: np.zeros(1, np.float32) for name in names or ("any.weight",)}, path)
    return str(path)


def _message(**settings: str) -> str:
    with pytest.raises(BadInput) as caught:
        locate_model(ModelSettings.model_validate(settings))
    return str(caught.value)


def test_a_file_has_the_facts_of_its_configuration_and_a_digest_of_both(tmp_path: Path) -> None:
    model = ModelSettings(id=_checkpoint(tmp_path / "a.safetensors"), config="bundled:shapes")
    facts = locate_model(model)[1]
    folder = locate_model(ModelSettings(id="bundled:shapes"))[1]
    assert (facts.pipeline, facts.width) == (folder.pipeline, folder.width)

    _checkpoint(tmp_path / "a.safetensors", "other.weight")
    assert model_digest(model) != facts.digest
    on_hub = model.model_copy(update={"config": MODEL, "revision": REVISION})
    other_commit = on_hub.model_copy(update={"revision": "f" * 40})
    assert len({model_digest(model), model_digest(on_hub), model_digest(other_commit)}) == 3


def test_a_file_without_a_configuration_is_refused(tmp_path: Path) -> None:
    file = _checkpoint(tmp_path / "a.safetensors")
    assert "is one file with weights alone. Set model.config to" in _message(id=file)


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    pickle = tmp_path / "a.ckpt"
    pickle.write_bytes(b"\x80\x04.")
    assert "is a pickle, which can run code" in _message(id=str(pickle))
    file = _checkpoint(tmp_path / "a.safetensors")
    assert "has no variants" in _message(id=file, config="bundled:shapes", variant="fp16")
    assert "Copy it to a folder or volume" in _message(id="s3://bucket/a.safetensors")
    assert "model.config is for a model in one" in _message(id="bundled:shapes", config="x/y")
    with pytest.raises(Missing, match="no such model file"):
        locate_model(ModelSettings(id="models/none.safetensors", config="bundled:shapes"))
