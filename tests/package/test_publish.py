"""docs/start.md leads from a template to a dataset on a hub, by the commands of one section."""

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
PAGE = ROOT / "docs" / "start.md"
SECTION = "## The best of four\n"
PUBLISHED = """
from datasets import load_dataset
images = load_dataset("USER/shapes", revision="v1", split="train")
print(len(images), images[0]["image"].size)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the examples, as the page does; the model takes one step for an image."""
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
    """Run a command of the page, and return what it prints."""
    names = {"hf://datasets/USER/shapes": f"hf://datasets/{REPOSITORY}"}
    words = [names.get(word, word) for word in words]
    if words[0] == "gallery":
        words += ["--port", "0"]
    result = call(folder, *words)
    assert result.exit_code == 0, (words, result.output)
    return result.output


def run_python(folder: Path, text: str, endpoint: str) -> str:
    """Return what Python prints in a process that knows the hub by its environment."""
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
def test_page_leads_from_a_template_to_a_dataset_on_a_hub(folder: Path, hub: DatasetHub) -> None:
    section = PAGE.read_text().partition(SECTION)[2].partition("\n## ")[0]
    printed: list[str] = []
    loaded: list[str] = []
    for kind, text in BLOCK.findall(section):
        if kind == "sh":
            printed += [run_command(folder, words) for words in commands(text)]
        elif kind == "python":
            loaded.append(run_python(folder, text, hub.endpoint))

    assert "images:      128 " in printed[0]
    assert [text.startswith("32 a ") for text in loaded] == [True]
    assert {*hub.tags} == {"v1"}
    assert run_python(folder, PUBLISHED, hub.endpoint) == "32 (64, 64)\n"
