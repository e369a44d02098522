"""A set of edits, from prompts with several references of mixed sizes to training rows.

Its processes are killed, an image fails once and is retried, and every image reads its own
references.
"""

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.generate.diffusion.adapters import ImageRequest, InputImageReader
from imagekiln.steps.generate.start import generate
from imagekiln.steps.imaging.input_images import open_input_image
from imagekiln.steps.local import run
from imagekiln.steps.maintain.retry import retry
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests import families, models
from tests.kills import make_with_kills
from tests.pictures import noise
from tests.runs import job, planned, write_prompts

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]
ROWS = 200
SHARD = 40
SIDES = (64, 80, 96)


def _reference(number: int) -> bytes:
    return noise(number, SIDES[number % len(SIDES)])


def _references(row: int) -> list[bytes]:
    """From one to three images, the first of which no other row has."""
    return [_reference(row), *(_reference(ROWS + other) for other in range(row % 3))]


def _rows() -> list[dict[str, Any]]:
    return [
        {"prompt": f"a star number {row}", "id": str(row), "reference_images": _references(row)}
        for row in range(ROWS)
    ]


def _settings(**changes: object) -> dict[str, Any]:
    model = {"id": str(families.folder("klein")), "dtype": "float32"}
    return {
        "model": model,
        "shard": {"images": SHARD},
        "defaults": {"steps": 1, "width": 64, "height": 64},
        **changes,
    }


def test_edits_survive_kills_and_a_retry_and_load_as_triplets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = planned(tmp_path, str(tmp_path / "out"), _rows(), **_settings())
    assert make_with_kills(edits, 3, seed=7).between >= 3

    read = InputImageReader._read_image

    def fail_on_one(reader: InputImageReader, request: ImageRequest) -> object:
        if request.sha256 == hashlib.sha256(_reference(ROWS - 1)).hexdigest():
            raise RuntimeError("the device hiccuped")
        return read(reader, request)

    monkeypatch.setattr(InputImageReader, "_read_image", fail_on_one)
    for shard in range(1, ROWS // SHARD):
        generate(edits.uri, shard, NoProgress())
    with pytest.raises(Incomplete):
        aggregate(edits.uri)
    monkeypatch.undo()
    retry(edits.uri, include_permanent=True)

    imagekiln.export(edits.uri, tmp_path / "triplets", triplets=True)
    triplets = import_module("datasets").load_dataset(
        str(tmp_path / "triplets"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(triplets) == ROWS
    for row in triplets:
        images = [row["input_image"], *row["other_input_images"]]
        expected = [*map(open_input_image, _references(int(row["id"])))]
        assert [*map(Pillow.Image.tobytes, images)] == [*map(Pillow.Image.tobytes, expected)]

    few = write_prompts(tmp_path / "few.parquet", _rows()[::40])
    alone = run(job(few, str(tmp_path / "alone"), **_settings()), NoProgress(), Stop())
    assert _hashes(alone.uri).items() <= _hashes(edits.uri).items()


def _hashes(uri: str) -> dict[str, str]:
    """The hash of the pixels of each image, by its id."""
    batches = imagekiln.dataset(uri, ["image_id", "pixels_sha256"]).to_batches()
    rows = [row for batch in batches for row in batch.to_pylist()]
    return {row["image_id"]: row["pixels_sha256"] for row in rows}
