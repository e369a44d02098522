"""What was exported is what `load_dataset` gives, also after it grew."""

from importlib import import_module
from pathlib import Path

import pytest

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from tests.models import SIDE
from tests.runs import encoded, fill, not_ok, planned

PROMPTS = 6
FAILED = 2


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "webdataset", "arrow", "files"])
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
