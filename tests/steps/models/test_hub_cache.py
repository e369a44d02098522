"""What is damaged in the hub's cache draws no image, and is downloaded again."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.diffusion import pipeline
from imagekiln.steps.generate.diffusion.pipeline import (
    fetch_model,
    fetch_run_models,
    load_pipeline,
)
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.hub_cache import require_undamaged
from imagekiln.steps.models.weights_check import WeightsCheck
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests.hub import MODEL, REVISION, serving_model
from tests.jobs import files, plan

SHAPES = BUNDLED_FOLDER / "shapes"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"
REMOVED = r"was damaged in this machine's cache, and was removed\. Run again"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A planned run of a model on a hub, whose files are in the cache."""
    with serving_model(SHAPES, tmp_path, monkeypatch):
        model = {"id": MODEL, "revision": REVISION}
        uri = plan(tmp_path, {"prompt": ["a circle"]}, model=model).uri
        fetch_run_models(uri)
        yield uri


def _damage(file: Path, *, shorten: bool = False) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(b"" if shorten else content)


@pytest.mark.parametrize("name", ["model_index.json", "tokenizer/tokenizer.json", WEIGHTS])
@pytest.mark.parametrize("shorten", [False, True])
def test_damaged_file_is_removed_and_downloaded_again(run: str, name: str, shorten: bool) -> None:
    file = Path(fetch_run_models(run)) / name
    _damage(file, shorten=shorten)
    with pytest.raises(TryAgain, match=REMOVED):
        fetch_run_models(run)
    fetch_run_models(run)
    assert file.read_bytes() == (SHAPES / name).read_bytes()


def test_what_killed_downloads_left_is_removed_and_what_is_being_written_stays(
    run: str,
) -> None:
    contents = Path(fetch_run_models(run)).parents[1] / "blobs"
    abandoned = contents / f"{'a' * 64}.0123abcd.incomplete"
    downloading = contents / f"{'b' * 64}.0123abcd.incomplete"
    for file in (abandoned, downloading):
        file.touch()
    two_hours_ago = abandoned.stat().st_mtime - 7200
    os.utime(abandoned, (two_hours_ago, two_hours_ago))
    whole = files(contents).keys() - {abandoned.name}
    fetch_run_models(run)
    assert files(contents).keys() == whole


def test_model_with_damaged_weights_draws_nothing(run: str) -> None:
    planned = load_plan(open_store(run))
    _damage(Path(fetch_run_models(run)) / WEIGHTS)
    with pytest.raises(TryAgain, match=REMOVED):
        load_pipeline(planned)
    load_pipeline(planned)


@pytest.mark.parametrize("name", ["model_index.json", "scheduler/scheduler_config.json", WEIGHTS])
def test_file_that_another_process_removes_before_it_is_loaded_is_worth_another_try(
    run: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Path(fetch_run_models(run)) / name

    def fetch(model: ModelSettings, weights: WeightsCheck) -> Path:
        folder = fetch_model(model, weights)
        link.resolve().unlink()
        return folder

    planned = load_plan(open_store(run))
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "fetch_model", fetch)
        with pytest.raises(TryAgain, match=REMOVED):
            load_pipeline(planned)
    load_pipeline(planned)


def test_configuration_that_is_damaged_on_its_way_is_worth_another_try(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(fetch_run_models(run)) / "vae" / "config.json"
    planned = load_plan(open_store(run))
    with monkeypatch.context() as patch:
        # As if it came only after the look at what is there.
        patch.setattr(pipeline, "require_undamaged_configuration", lambda _: file.write_text("{"))
        with pytest.raises(TryAgain, match=REMOVED):
            load_pipeline(planned)
    load_pipeline(planned)


def _cached(folder: Path, content: bytes, content_name: str) -> Path:
    """A link of a model's folder to a file of this name."""
    (folder / content_name).write_bytes(content)
    link = folder / "model.safetensors"
    link.unlink(missing_ok=True)
    link.symlink_to(content_name)
    return link


def test_file_is_whole_by_each_name_that_a_hub_gives_it(tmp_path: Path) -> None:
    content = b"weights"
    git = hashlib.sha1(b"blob 7\0" + content, usedforsecurity=False).hexdigest()
    plain = hashlib.sha1(content, usedforsecurity=False).hexdigest()  # of a mirror
    sha256 = hashlib.sha256(content).hexdigest()
    for name in (git, plain, sha256, "a-mirror's-own-name"):
        require_undamaged("model", [_cached(tmp_path, content, name)])
    for name in (git, plain, sha256):
        link = _cached(tmp_path, b"weighty", name)
        with pytest.raises(TryAgain, match=REMOVED):
            require_undamaged("model", [link])
        assert not link.exists()
    require_undamaged("model", [tmp_path / "a-mirror's-own-name"])  # a copy, and no link


def test_content_that_models_share_is_removed_with_its_name_in_the_store(tmp_path: Path) -> None:
    shared = tmp_path / "blobs" / ("1" * 64)
    shared.parent.mkdir()
    shared.write_bytes(b"damaged")
    (tmp_path / ("0" * 64)).symlink_to(shared)
    link = tmp_path / "model.safetensors"
    link.symlink_to("0" * 64)
    with pytest.raises(TryAgain, match=REMOVED):
        require_undamaged("model", [link])
    assert not shared.exists()


def test_damaged_file_that_cannot_be_removed_is_no_reason_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path, **_: object) -> None:
        raise OSError(30, "Read-only file system")

    link = _cached(tmp_path, b"weights", "0" * 64)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(BadInput, match=r"cannot be used \(Read-only file system\)"):
        require_undamaged("model", [link])
