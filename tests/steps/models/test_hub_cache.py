"""What is damaged in the hub's cache draws no image, and is downloaded again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.diffusion.pipeline import (
    fetch_run_models,
    load_pipeline,
)
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


def test_what_killed_downloads_left_is_removed_and_what_is_being_written_stays(run: str) -> None:
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
