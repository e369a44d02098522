"""The check of a model's files beside other work."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models import facts
from imagekiln.steps.models.facts import WeightsCheck, model_digest
from imagekiln.steps.models.weights import BeforePiece
from imagekiln.steps.storage.uri import BUNDLED_FOLDER

NOT_PLANNED = "is not the model that the run was planned with"
HUB_MODEL = ModelSettings(id="org/name", revision="0" * 40)


def _require_planned(model: ModelSettings, digest: str, **changes: object) -> None:
    with WeightsCheck(model.model_copy(update=changes), digest) as check:
        check.require_planned()


def test_other_files_do_not_pass_and_neither_does_another_variant_or_commit(tmp_path: Path) -> None:
    folder = shutil.copytree(BUNDLED_FOLDER / "shapes", tmp_path / "model")
    model = ModelSettings(id=str(folder))
    digest, on_hub = model_digest(model), model_digest(HUB_MODEL)
    _require_planned(model, digest)
    _require_planned(HUB_MODEL, on_hub)
    with pytest.raises(BadInput, match=NOT_PLANNED):
        _require_planned(model, digest, variant="fp16")
    with pytest.raises(BadInput, match=NOT_PLANNED):
        _require_planned(HUB_MODEL, on_hub, revision="1" * 40)
    (folder / "unet" / "more.safetensors").write_bytes(b"more")
    with pytest.raises(BadInput, match=NOT_PLANNED):
        _require_planned(model, digest)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (None, {"unet/a-00001-of-00002.safetensors", "vae/b.safetensors"}),
        ("fp16", {"unet/a.fp16-00001-of-00002.safetensors", "vae/b.safetensors"}),
    ],
)
def test_of_a_hub_model_only_the_weights_of_its_variant_are_hashed(
    variant: str | None, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {
        "unet/a-00001-of-00002.safetensors",
        "unet/a.fp16-00001-of-00002.safetensors",
        "unet/a.non_ema.safetensors",
        "vae/b.safetensors",
        "vae_1_0/c.safetensors",
        "whole_model_1.0.safetensors",
    }
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"weights")
    (tmp_path / "model_index.json").write_text('{"unet": ["", ""], "vae": ["", ""]}')
    hashed = set[str]()

    def require_undamaged(_name: str, paths: Iterable[Path], before_piece: BeforePiece) -> None:
        before_piece()
        hashed.update(path.relative_to(tmp_path).as_posix() for path in paths)

    monkeypatch.setattr(facts, "require_undamaged", require_undamaged)
    model = HUB_MODEL.model_copy(update={"variant": variant})
    with WeightsCheck(model, model_digest(model)) as check:
        check.add_downloaded(tmp_path)
        check.require_planned()
    assert hashed == {*expected, "model_index.json"}
