"""docs/publish.md leads to a dataset on a hub: its commands and its Python, in their order."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from imagekiln.steps.gallery.server import GalleryServer
from imagekiln.steps.runtime.signals import Stopped
from tests.dataset_hub import REPOSITORY, TOKEN, DatasetHub, dataset_hub
from tests.package.finished_job import call
from tests.package.shown_commands import commands
from tests.pages import BLOCK, EXAMPLES, ROOT

# huggingface_hub 2.4.0 passes bytes as `data`, which its HTTP client deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
PAGE = ROOT / "docs" / "publish.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, as the page makes it; the model takes one step for an image."""
    copy = Path(shutil.copytree(EXAMPLES, tmp_path / "publish"))
    monkeypatch.syspath_prepend(copy)
    monkeypatch.setenv("IMAGEKILN__DEFAULTS__STEPS", "1")
    # A browser would look at it until Ctrl-C.
    monkeypatch.setattr(GalleryServer, "serve_forever", stop)
    return copy


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[DatasetHub]:
    with dataset_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def stop(_: object) -> None:
    raise Stopped


def run_command(folder: Path, words: list[str]) -> str:
    """What a command of the page prints."""
    names = {"RUN": "images/*", "hf://datasets/USER/shapes": f"hf://datasets/{REPOSITORY}"}
    words = [names.get(word, word) for word in words]
    if "images/*" in words:
        (run,) = (folder / "images").glob("shapes-*")
        words[words.index("images/*")] = str(run)
    if words[0] == "gallery":
        words += ["--port", "0"]
    result = call(folder, *words)
    assert result.exit_code == 0, (words, result.output)
    return result.output


def run_python(folder: Path, text: str, endpoint: str) -> str:
    """What the Python of the page prints, in a process that knows the hub by its environment."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-c", text.replace("USER/shapes", REPOSITORY)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_page_leads_from_a_template_to_a_dataset_on_a_hub(
    folder: Path, hub: DatasetHub
) -> None:
    printed: list[str] = []
    loaded: list[str] = []
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "sh":
            printed += [run_command(folder, words) for words in commands(text)]
        elif kind == "python":
            loaded.append(run_python(folder, text, hub.endpoint))

    assert "images:      128 " in printed[0]
    local, published = loaded
    assert local.startswith("24 a ")
    assert published == "24 (64, 64)\n"
    gallery = json.loads((folder / "images" / "gallery" / "gallery.json").read_text())
    assert "color" in gallery["state"]["flags"]
    assert gallery["state"]["scores"] == ["color"]
    assert {*hub.tags} == {"v1", "v2"}
    before, after = (hub.commits[hub.tags[version]] for version in ("v1", "v2"))
    assert {*before} == {*after}
    assert before["data/00000.parquet"] != after["data/00000.parquet"]
