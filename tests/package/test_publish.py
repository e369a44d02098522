"""The best of four reaches a hub: commands and Python of two sections of docs, in their order."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from imagekiln.steps.gallery.server import GalleryServer
from imagekiln.steps.runtime.signals import Stopped
from tests.dataset_hub import REPOSITORY, TOKEN, DatasetHub, dataset_hub
from tests.exports import images_by_id
from tests.package.finished_job import PROMPTS, call, write_job
from tests.package.shown_commands import commands
from tests.pages import BLOCK, EXAMPLES, ROOT

# huggingface_hub 2.4.0 passes bytes as `data`, which its HTTP client deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
SECTIONS = (("start.md", "## The best of four\n"), ("export.md", "## Publish on a hub\n"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, as the page makes it; one denoising step for an image."""
    copy = Path(shutil.copytree(EXAMPLES, tmp_path / "first"))
    monkeypatch.syspath_prepend(copy)
    job = copy / "published.yaml"
    values = yaml.safe_load(job.read_text())
    values.setdefault("defaults", {})["steps"] = 1
    job.write_text(yaml.safe_dump(values))
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
    """Run a command of the page and return its output."""
    words = [word.replace("USER/shapes", REPOSITORY) for word in words]
    if words[0] == "gallery":
        words += ["--port", "0"]
    result = call(folder, *words)
    assert result.exit_code == 0, (words, result.output)
    return result.output


def run_python(folder: Path, text: str, endpoint: str) -> str:
    """Run Python of the page in a process that has the hub in its environment."""
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


def blocks() -> Iterator[tuple[str, str]]:
    """The sections' blocks of code, with their languages."""
    for page, heading in SECTIONS:
        text = (ROOT / "docs" / page).read_text().split(heading, 1)[1]
        yield from BLOCK.findall(text.split("\n## ", 1)[0])


def test_nights_go_into_one_folder_for_training(tmp_path: Path) -> None:
    """The section of the quick start about every night, twice: the second night has new rows."""
    write_job(tmp_path)
    text = (
        (ROOT / "docs" / "start.md").read_text().split("## Every night, into a training job\n")[1]
    )
    (script,) = (block for kind, block in BLOCK.findall(text.split("\n## ")[0]) if kind == "sh")
    for night in range(2):
        with (tmp_path / "prompts.csv").open("a") as prompts:
            prompts.write(f"a blue circle of night {night}\n")
        for words in commands(script):
            run_command(tmp_path, words)
    assert len(images_by_id(str(tmp_path / "training"))) == PROMPTS.count("circle") + 2


@pytest.mark.slow
def test_the_best_of_four_reaches_a_hub(folder: Path, hub: DatasetHub) -> None:
    printed: list[str] = []
    loaded: list[str] = []
    for kind, text in blocks():
        if kind == "sh":
            printed += [run_command(folder, words) for words in commands(text)]
        elif kind == "python":
            loaded.append(run_python(folder, text, hub.endpoint))

    assert "images:      128 " in printed[0]
    assert loaded[0].startswith("32 a ")
    assert {*hub.tags} == {"v1"}
