"""The check of a model's files beside other work."""

import shutil
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import model_digest
from imagekiln.steps.models.weights_check import WeightsCheck
from imagekiln.steps.storage.uri import BUNDLED_FOLDER

NOT_PLANNED = r"is not the model that the run was planned with\. Restore it, or plan anew\."
HUB_MODEL = ModelSettings(id="org/name", revision="0" * 40)


@pytest.fixture
def model(tmp_path: Path) -> ModelSettings:
    """A copy of the bundled model."""
    return ModelSettings(id=str(shutil.copytree(BUNDLED_FOLDER / "shapes", tmp_path / "model")))


def test_other_files_do_not_pass_and_neither_does_another_variant(model: ModelSettings) -> None:
    digest = model_digest(model)
    other_variant = model.model_copy(update={"variant": "fp16"})
    with WeightsCheck(other_variant, digest) as check, pytest.raises(BadInput, match=NOT_PLANNED):
        check.require_planned()
    (Path(model.id) / "unet" / "more.safetensors").write_bytes(b"more")
    with WeightsCheck(model, digest) as check, pytest.raises(BadInput, match=NOT_PLANNED):
        check.require_planned()


def test_a_hub_model_is_known_by_its_commit() -> None:
    with WeightsCheck(HUB_MODEL, model_digest(HUB_MODEL)) as check:
        check.require_planned()
    other = HUB_MODEL.model_copy(update={"revision": "1" * 40})
    planned = model_digest(HUB_MODEL)
    with WeightsCheck(other, planned) as check, pytest.raises(BadInput, match=NOT_PLANNED):
        check.require_planned()


def test_a_downloaded_model_that_cannot_be_read_does_not_pass(tmp_path: Path) -> None:
    with WeightsCheck(HUB_MODEL, model_digest(HUB_MODEL)) as check:
        check.add_downloaded(tmp_path / "no such folder")
        with pytest.raises(Missing):
            check.require_planned()
