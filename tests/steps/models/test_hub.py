import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import locate_model
from imagekiln.steps.models.hub import ask_hub, download_configuration
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests.hub import (
    GATED,
    MODEL,
    REVISION,
    Hub,
    serving_model,
)
from tests.hub import hub as loopback_hub

OTHER = "f" * 40
NO_MODEL = "no such model on the hub, or no access. Check model.id and HF_TOKEN."


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the bundled model, and an empty cache."""
    with serving_model(BUNDLED_FOLDER / "shapes", tmp_path, monkeypatch) as hub_server:
        yield hub_server


def _error_message(kind: type[KilnError], name: str, revision: str | None = OTHER) -> str:
    with pytest.raises(kind) as caught:
        download_configuration(ModelSettings(id=name, revision=revision))
    assert type(caught.value) is kind
    return str(caught.value)


def test_pinned_model_that_has_only_pickles_is_refused_at_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(BUNDLED_FOLDER / "shapes", tmp_path / "repository")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    (folder / "v1.ckpt").write_bytes(b"what no pipeline reads")
    (folder / "vae" / "diffusion_pytorch_model.bin").write_bytes(b"a second copy of the weights")
    settings = ModelSettings(id=MODEL, revision=REVISION)
    with serving_model(folder, tmp_path, monkeypatch):
        assert locate_model(settings)[1].pipeline == "StableDiffusionPipeline"
        weights.rename(weights.with_suffix(".bin"))
        with pytest.raises(BadInput) as caught:
            locate_model(settings)
    assert str(caught.value) == (
        f"{MODEL}: unet/diffusion_pytorch_model.bin is a pickle, which can run code. Convert "
        "it to safetensors."
    )


def test_model_in_the_cache_needs_no_hub(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    folder = download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    assert server.requested_files
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download_configuration(ModelSettings(id=MODEL, revision=REVISION)) == folder
    assert (
        locate_model(ModelSettings(id=MODEL, revision=REVISION))[1].pipeline
        == "StableDiffusionPipeline"
    )


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
    assert _error_message(kind, name) == f"{name}: {sentence}"


@pytest.mark.usefixtures("server")
def test_model_that_may_not_be_fetched_is_not_worth_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert _error_message(BadInput, MODEL, REVISION) == (
        f"{MODEL}: is not in this machine's cache, and HF_HUB_OFFLINE is set. "
        "Fill the model cache (`imagekiln fetch RUN`, `imagekiln rewrite JOB --fetch`), or unset "
        "it."
    )


def test_hub_that_does_not_answer_is_worth_another_try(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    with loopback_hub(BUNDLED_FOLDER) as gone:
        endpoint = gone.endpoint
    assert endpoint != server.endpoint
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client waits 23 s between its tries
    assert _error_message(TryAgain, MODEL, REVISION) == (
        f"{MODEL}: the hub could not be reached. Run again, or set model to a path."
    )


@pytest.mark.usefixtures("server")
def test_cache_that_cannot_be_written_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert str(tmp_path / "file") in _error_message(BadInput, MODEL, REVISION)


def _read_info() -> str:
    """A request that the hub's client sends once: the first one of a pipeline's download."""
    from huggingface_hub import HfApi

    return HfApi().model_info(MODEL, revision=REVISION).id


def test_hub_that_is_busy_is_worth_another_try_later(server: Hub) -> None:
    server.first_answers.append((429, {}))
    with pytest.raises(TryAgain) as caught:
        ask_hub(ModelSettings(id=MODEL, revision=REVISION), _read_info)
    assert str(caught.value) == (
        f"{MODEL}: the hub has too many requests from here (429). Run again later. "
        "Set HF_TOKEN, which raises the limit; on a cluster, use a profile with a cache."
    )
