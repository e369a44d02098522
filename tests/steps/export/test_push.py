"""An export on a hub is whole under its version, and nothing is sent twice."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

import imagekiln
from imagekiln import BadInput, TryAgain
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.runs.keys import SUCCESS_KEY
from tests.dataset_hub import TOKEN, DatasetHub, dataset_hub
from tests.runs import encoded, fill, planned

# huggingface_hub 2.4.0 passes bytes as `data`, which its HTTP client deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
REPOSITORY = "hf://datasets/kiln/shapes"
PROMPTS = 5


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[DatasetHub]:
    """A hub without a dataset, for which this process has a token. Failures are not repeated."""
    with dataset_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("imagekiln.steps.export.push.COMMIT_FILES", 2)
        yield server


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of several files. Tests that change it copy it."""
    folder = tmp_path_factory.mktemp("push")
    rows = [{"prompt": f"number {index}", "place": index} for index in range(PROMPTS)]
    run = planned(folder, str(folder / "out"), rows, carry=["place"])
    fill(run, {index: encoded(index) for index in range(PROMPTS)})
    aggregate(run.uri)
    imagekiln.export(run.uri, folder / "export", partition_by="place")
    return folder / "export"


def pushed_files(folder: Path) -> dict[str, bytes]:
    """What the hub is to have of an export."""
    paths = [*folder.glob("data/**/*.parquet"), *folder.glob("manifest/*"), folder / "README.md"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_version_has_the_files_of_its_export(
    export: Path, hub: DatasetHub, tmp_path: Path
) -> None:
    result = imagekiln.push(export, REPOSITORY, version="v1")
    assert hub.files == pushed_files(export)
    assert (result.files, hub.private) == (PROMPTS + 2, True)
    assert hub.commits[hub.tags["v1"]] == hub.files
    written = [file.read_bytes() for file in export.rglob("*") if file.is_file()]
    assert not any(TOKEN.encode() in content for content in (*written, *hub.files.values()))

    changed = shutil.copytree(export, tmp_path / "changed")
    output = shutil.copytree(export.parent / "out", tmp_path / "out")
    first = next(output.glob("tiny-*"))
    imagekiln.forget(first, prompt_contains=["number 0"], remove=True)
    imagekiln.export(first, changed, partition_by="place")
    sent = len(hub.uploads)
    imagekiln.push(changed, REPOSITORY, version="v2")
    assert hub.files == pushed_files(changed)
    assert len(hub.uploads) == sent + 1  # the manifest
    assert hub.commits[hub.tags["v1"]] == pushed_files(export)
    with pytest.raises(BadInput, match="version v1 is there"):
        imagekiln.push(changed, REPOSITORY, version="v1")


def test_a_push_that_was_interrupted_sends_nothing_twice(export: Path, hub: DatasetHub) -> None:
    answers = 1
    while "v1" not in hub.tags:
        hub.answers_left = answers
        answers += 3
        try:
            imagekiln.push(export, REPOSITORY, version="v1")
        except TryAgain:
            continue
    assert hub.files == pushed_files(export)
    assert len(hub.uploads) == len(set(hub.uploads)) == PROMPTS + 1
    hub.answers_left = float("inf")
    commits = len(hub.commits)
    assert imagekiln.push(export, REPOSITORY, version="v1").version == "v1"
    assert len(hub.commits) == commits


@pytest.mark.parametrize("name", ["README.md", "data"])
def test_a_link_in_an_export_is_not_published(
    export: Path, hub: DatasetHub, tmp_path: Path, name: str
) -> None:
    strangers = shutil.copytree(export, tmp_path / "strangers")
    (strangers / name).rename(tmp_path / "elsewhere")
    (strangers / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="is a link, which is not published"):
        imagekiln.push(strangers, REPOSITORY)
    assert (hub.objects, hub.files) == ({}, {})


def test_what_cannot_be_pushed_is_refused(
    export: Path, hub: DatasetHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hf://models/a/b", "hf://datasets/a", "hf://datasets/../x/y"):
        with pytest.raises(BadInput, match="hf://datasets/USER/NAME"):
            imagekiln.push(export, name)
    run = next((export.parent / "out").glob("tiny-*"))
    imagekiln.export(run, tmp_path / "pictures", format="files")
    with pytest.raises(BadInput, match=r"slow with so many\. Export as parquet"):
        imagekiln.push(tmp_path / "pictures", REPOSITORY)
    partial = shutil.copytree(export, tmp_path / "partial")
    (partial / SUCCESS_KEY).unlink()
    with pytest.raises(BadInput, match="is not complete"):
        imagekiln.push(partial, REPOSITORY)
    monkeypatch.setenv("HF_TOKEN", "hf_another-secret")
    with pytest.raises(BadInput, match="refused access") as caught:
        imagekiln.push(export, REPOSITORY)
    assert "another-secret" not in str(caught.value)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(BadInput, match="HF_TOKEN is not set"):
        imagekiln.push(export, REPOSITORY)
    assert hub.files == {}
