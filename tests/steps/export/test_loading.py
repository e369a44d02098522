"""What was exported, and what was pushed, is what `load_dataset` gives, also after it grew."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from operator import itemgetter
from pathlib import Path

import pytest
from huggingface_hub import constants

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from tests.dataset_hub import REPOSITORY, TOKEN, dataset_hub
from tests.models import SIDE
from tests.runs import encoded, fill, not_ok, planned

# huggingface_hub 2.4.0 passes bytes as `data`, which its HTTP client deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
FORMATS = ("parquet", "webdataset")
PROMPTS = 6
FAILED = 2
Rows = list[dict[str, object]]


def make_output(folder: Path, nights: int = 2) -> str:
    """Two runs that share images, or only the first; of that, an image failed."""
    output = str(folder / "nights")
    rows = [{"prompt": f"number {index}, ünïcode", "half": index % 2} for index in range(PROMPTS)]
    for night in range(nights):
        run = planned(
            folder / f"{night}",
            output,
            rows[night * 3 :],
            run_id=f"night-{night}",
            carry=["half"],
            limits={"failed_share": 0.5},
        )
        failed = {FAILED: not_ok(0)} if not night else {}
        images = {index: encoded(index + night * 3) for index in range(PROMPTS - night * 3)}
        fill(run, images | failed)
        aggregate(run.uri)
    return output


def load(endpoint: str, home: Path, versions: Sequence[str]) -> list[Rows]:
    """What a new process loads, which knows the hub by its environment alone."""
    command = [sys.executable, "-m", "tests.hub_reader", REPOSITORY, *versions]
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FORMATS, "arrow", "files"])
def test_an_export_that_grew_loads_as_one(tmp_path: Path, kind: str) -> None:
    for night in range(2):
        output = make_output(tmp_path, nights=night + 1)
        imagekiln.export(output, tmp_path / "export", format=kind, partition_by="half")
        loaded = import_module("datasets").load_dataset(
            str(tmp_path / "export"), split="train", cache_dir=str(tmp_path / "cache")
        )
        expected = imagekiln.dataset(output, columns=["image_id"], newest_by="image_id")
        ids = [row["image_id"] for batch in expected.to_batches() for row in batch.to_pylist()]
        assert sorted(loaded["__key__" if kind == "webdataset" else "image_id"]) == sorted(ids)
        assert loaded[0]["png" if kind == "webdataset" else "image"].size == (SIDE, SIDE)


@pytest.mark.slow
def test_versions_on_a_hub_load_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = make_output(tmp_path)
    expected = [
        {
            "image_id": row["image_id"],
            "prompt": row["prompt"],
            "seed": row["seed"],
            "sha256": row["sha256"],
            "size": [SIDE, SIDE],
        }
        for batch in imagekiln.dataset(output, newest_by="image_id").to_batches()
        for row in batch.to_pylist()
    ]
    assert len(expected) == PROMPTS - 1
    with dataset_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        for kind in FORMATS:
            folder = tmp_path / kind
            imagekiln.export(output, folder, format=kind, partition_by="half")
            imagekiln.push(folder, f"hf://datasets/{REPOSITORY}", version=f"v-{kind}")
        loaded = load(hub.endpoint, tmp_path / "home", [f"v-{kind}" for kind in FORMATS])

    by_id = itemgetter("image_id")
    for copied, streamed, manifest in (loaded[:3], loaded[3:]):
        assert sorted(copied, key=by_id) == sorted(expected, key=by_id)
        assert streamed == copied
        assert [row["image_id"] for row in manifest] == [row["image_id"] for row in copied]
