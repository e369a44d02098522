"""Models on a hub: failures as sentences, and files that are damaged in its cache."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.generate.diffusion.pipeline import fetch_run_models, load_pipeline
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import locate_model
from imagekiln.steps.models.hub import ask_hub, download_configuration
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests.hub import GATED, MODEL, REVISION, Hub, serving_model
from tests.hub import hub as loopback_hub
from tests.jobs import files, plan

SHAPES = BUNDLED_FOLDER / "shapes"
OTHER = "f" * 40
PINNED = ModelSettings(id=MODEL, revision=REVISION)
NO_MODEL = "no such model on the hub, or no access. Check model.id and HF_TOKEN."
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"
REMOVED = r"was damaged in this machine's cache, and was removed\. Run again"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the bundled model, and an empty cache."""
    with serving_model(SHAPES, tmp_path, monkeypatch) as hub_server:
        yield hub_server


def _error_message(kind: type[KilnError], name: str = MODEL, revision: str = REVISION) -> str:
    with pytest.raises(kind) as caught:
        download_configuration(ModelSettings(id=name, revision=revision))
    assert type(caught.value) is kind
    return str(caught.value)


def test_pinned_model_that_has_only_pickles_is_refused_at_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(SHAPES, tmp_path / "repository")
    weights = folder / WEIGHTS
    (folder / "v1.ckpt").write_bytes(b"what no pipeline reads")
    (folder / "vae" / "diffusion_pytorch_model.bin").write_bytes(b"a second copy of the weights")
    with serving_model(folder, tmp_path, monkeypatch):
        assert locate_model(PINNED)[1].pipeline == "StableDiffusionPipeline"
        weights.rename(weights.with_suffix(".bin"))
        with pytest.raises(BadInput, match=r"unet/diffusion_pytorch_model\.bin is a pickle"):
            locate_model(PINNED)


def test_model_in_the_cache_needs_no_hub(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = download_configuration(PINNED)
    assert server.requested_files
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert download_configuration(PINNED) == folder
    assert locate_model(PINNED)[1].pipeline == "StableDiffusionPipeline"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        (Missing, MODEL, f"has no revision {OTHER}. Correct model.revision."),
        (Missing, "kiln/nothing", NO_MODEL),
        (Missing, "kiln/--..", NO_MODEL),
        (BadInput, GATED, "is gated. Accept its terms on the hub and set HF_TOKEN."),
    ],
)
def test_answer_of_the_hub_is_explained(kind: type[KilnError], name: str, sentence: str) -> None:
    assert _error_message(kind, name, OTHER) == f"{name}: {sentence}"


def test_hub_that_is_not_asked_or_does_not_answer_is_explained(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert "HF_HUB_OFFLINE is set. Fill the model cache (`" in _error_message(BadInput)
    with loopback_hub(BUNDLED_FOLDER) as gone:
        pass
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.ENDPOINT", gone.endpoint)
        patch.setattr("time.sleep", lambda _: None)  # the client waits 23 s between its tries
        assert _error_message(TryAgain) == (
            f"{MODEL}: the hub could not be reached. Run again, or set model to a path."
        )
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file"))
    assert str(tmp_path / "file") in _error_message(BadInput)
    assert server.requested_files == []


def test_hub_that_is_busy_is_worth_another_try_later(server: Hub) -> None:
    from huggingface_hub import HfApi

    server.first_answers.append((429, {}))
    with pytest.raises(TryAgain, match=r"too many requests from here \(429\)\. Run again later"):
        ask_hub(PINNED, lambda: HfApi().model_info(MODEL, revision=REVISION))


@pytest.fixture
def run(tmp_path: Path, server: Hub) -> str:
    """A planned run of a model on a hub, whose files are in the cache."""
    model = {"id": MODEL, "revision": REVISION}
    uri = plan(tmp_path, {"prompt": ["a circle"]}, model=model).uri
    fetch_run_models(uri)
    assert server.requested_files
    return uri


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
