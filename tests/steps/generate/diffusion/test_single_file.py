"""A model in one file draws what the same model in a folder draws."""

from pathlib import Path

import pytest

from imagekiln.steps.local import run
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import models
from tests.runs import PROMPTS, job, write_prompts
from tests.single_file import write_checkpoint

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)


def _pixels(folder: Path, model: dict[str, object]) -> list[str]:
    prompts = write_prompts(folder / "prompts.parquet", PROMPTS[:4])
    done = run(job(prompts, str(folder / "out"), model=model), NoProgress(), Stop())
    return list(read_table(open_store(done.uri), manifest_key(0))["pixels_sha256"].to_pylist())


def test_a_model_in_one_file_draws_what_its_folder_draws(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path / "model.safetensors")
    folder = str(models.folder("sd"))
    in_folder: dict[str, object] = {"id": folder, "dtype": "float32"}
    in_file: dict[str, object] = {"id": str(file), "config": folder, "dtype": "float32"}
    assert _pixels(tmp_path / "file", in_file) == _pixels(tmp_path / "folder", in_folder)
