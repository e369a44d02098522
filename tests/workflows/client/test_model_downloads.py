"""What pods download without a cache is said, and a model that does not fit is not submitted."""

from dataclasses import replace
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from imagekiln.workflows.client import model_downloads
from imagekiln.workflows.client.client import submit
from imagekiln.workflows.client.model_downloads import (
    ModelDownload,
    describe_download,
    explain_small_disk,
    list_downloads,
)
from imagekiln.workflows.client.schedules import create
from imagekiln.workflows.profiles.loader import load_profile
from tests.hub import MODEL, REVISION, serving_model
from tests.workflows.client.postcards import NAMESPACE, postcards
from tests.workflows.memory import Memory

GPU = load_profile("gpu")
FLUX = postcards(model={"id": "black-forest-labs/FLUX.1-dev", "revision": "a" * 40})
WEIGHTS = ModelDownload(FLUX.model.id, 34 * 10**9, 16)
VOLUME = "create the volume of cluster/gpus/models-claim.yaml (of `imagekiln manifests cluster`)"


def test_downloads_are_described_with_their_size_and_the_profile_to_take() -> None:
    assert describe_download(FLUX, WEIGHTS) == (
        "Every pod downloads black-forest-labs/FLUX.1-dev again, 34.0 GB each, 16 pods at once. "
        f"To download it once: {VOLUME} and set cluster.profile to cached-claim."
    )
    cluster = FLUX.cluster.model_copy(update={"profile": "h100"})
    assert describe_download(FLUX.model_copy(update={"cluster": cluster}), WEIGHTS).endswith(
        "add `cache: {claim: imagekiln-models}` to a profile of your own, `like: h100`."
    )


def test_language_model_is_downloaded_by_the_pods_that_rewrite() -> None:
    cluster = {"namespace": NAMESPACE, "rewriters": 3}
    job = postcards(rewrite={"model": {"id": "kiln/writer"}}, cluster=cluster)
    (download,) = list_downloads(job, GPU, sizes=False)
    assert describe_download(job, download).startswith(
        "Every pod that rewrites prompts downloads kiln/writer again, 3 pods at once."
    )
    assert list_downloads(job, load_profile("cached-claim")) == []


def test_models_of_passes_are_downloaded_beside_the_jobs_own() -> None:
    refiner = {"id": "kiln/refiner", "revision": "b" * 40}
    passes = {
        "detail": {"kind": "refine", "model": refiner},
        "again": {"kind": "refine", "model": refiner | {"dtype": "float32"}},
    }
    both = postcards(model=FLUX.model.model_dump(), passes=passes)
    (download,) = list_downloads(both, GPU, sizes=False)
    assert (download.model, download.size) == (f"{FLUX.model.id} with kiln/refiner", None)
    local = postcards(model={"id": "bundled:shapes"}, passes=passes)
    (download,) = list_downloads(local, GPU, sizes=False)
    assert download.model == "kiln/refiner"


def test_the_disk_holds_all_models_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_downloads, "download_bytes", lambda _: 15 * 10**9)
    passes = {"detail": {"kind": "refine", "model": {"id": "kiln/refiner"}}}
    job = postcards(model={"id": "kiln/base"}, passes=passes)
    (download,) = list_downloads(job, GPU)
    shortage = explain_small_disk(job, GPU, download)
    assert shortage is not None
    assert shortage[0].startswith("kiln/base with kiln/refiner is 30.0 GB, and profile gpu gives")


def test_model_that_is_larger_than_a_pods_disk_is_refused_with_the_number_to_set() -> None:
    shortage = explain_small_disk(FLUX, GPU, WEIGHTS)
    assert shortage is not None
    says, remedy = shortage
    assert says == (
        "black-forest-labs/FLUX.1-dev is 34.0 GB, and profile gpu gives a pod 20 GiB of disk."
    )
    assert remedy.endswith("Or set `generate: {disk: 34}` in a profile of your own.")

    for disk in (34, None):
        generate = GPU.generate.model_copy(update={"disk": disk})
        large = GPU.model_copy(update={"generate": generate})
        assert explain_small_disk(FLUX, large, WEIGHTS) is None


def test_job_whose_model_does_not_fit_is_not_submitted(
    argo: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    (tmp_path / "small.yaml").write_text("description: Small\ngenerate: {disk: 1}\n")
    job = postcards(
        model={"id": MODEL, "revision": REVISION},
        cluster={"namespace": NAMESPACE, "profile": str(tmp_path / "small.yaml")},
    )
    with (
        serving_model(BUNDLED_FOLDER / "shapes", tmp_path, monkeypatch),
        pytest.raises(BadInput, match=f"{MODEL} is 0.0 GB, and profile small gives a pod 1 GiB"),
    ):
        submit(job, argo=argo)
    assert not argo.objects


def test_submitting_and_scheduling_say_what_is_downloaded(argo: Memory) -> None:
    said: list[str] = []
    submit(FLUX, argo=argo, report=said.append)
    create(FLUX, "30 1 * * *", argo=argo, report=said.append)
    assert said.count(describe_download(FLUX, replace(WEIGHTS, size=None))) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"id": "bundled:shapes"}},
        {"cluster": {"namespace": NAMESPACE, "profile": "cached-claim"}},
    ],
)
def test_nothing_is_said_where_nothing_is_downloaded_again(
    argo: Memory, changes: dict[str, object]
) -> None:
    said: list[str] = []
    values = FLUX.model_dump(mode="json", exclude_defaults=True)
    submit(postcards(**(values | changes)), argo=argo, report=said.append)
    assert not any("downloads" in sentence for sentence in said)
