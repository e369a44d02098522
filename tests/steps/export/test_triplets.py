"""Edited images with their instructions and input images, as sets to train editing have them."""

import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput
from imagekiln.steps.export.triplets import EDITED_COLUMNS
from imagekiln.steps.imaging.input_images import open_input_image
from imagekiln.steps.runs.keys import input_image_key
from tests import adapters, models
from tests.pictures import noise
from tests.runs import fill, planned

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

SOURCE, REFERENCE = EDITED_COLUMNS
# No input image, one, and two.
INPUTS = {"draw a cat": [], "make it winter": [noise(1)], "in this style": [noise(2), noise(1)]}


def _run(folder: Path, **changes: object) -> str:
    """A finished run of noise that was made from these inputs."""
    adapter = {"id": str(adapters.ip_adapter("sd")), "weight_name": "adapter.safetensors"}
    model = {"id": str(models.folder("sd")), "dtype": "float32", "ip_adapter": adapter}
    rows = [
        {
            "prompt": prompt,
            "edit_prompt": "a carried column",
            SOURCE: images[0] if images else None,
            REFERENCE: images[1] if images[1:] else None,
        }
        for prompt, images in INPUTS.items()
    ]
    run = planned(folder, str(folder / "out"), rows, model=model, **changes)
    fill(run)
    aggregate(run.uri)
    return run.uri


def _load(folder: Path) -> list[dict[str, Any]]:
    loaded = import_module("datasets").load_dataset(
        str(folder), split="train", cache_dir=str(folder.with_name("cache"))
    )
    return list(loaded)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_triplets_load_with_their_images(tmp_path: Path, kind: Literal["parquet", "arrow"]) -> None:
    run = _run(tmp_path)
    imagekiln.export(run, tmp_path / "edits", format=kind, columns=["seed"], triplets=True)
    rows = _load(tmp_path / "edits")
    assert [*rows[0]][:3] == ["input_image", "edit_prompt", "edited_image"]
    assert {row["edit_prompt"] for row in rows} == INPUTS.keys()
    for row in rows:
        images = filter(None, [row["input_image"], *row["other_input_images"]])
        expected = map(open_input_image, INPUTS[row["edit_prompt"]])
        assert [*map(Pillow.Image.tobytes, images)] == [*map(Pillow.Image.tobytes, expected)]
        assert isinstance(row["edited_image"], Pillow.Image)


def test_triplets_of_webdataset_have_a_member_for_each_image(tmp_path: Path) -> None:
    imagekiln.export(_run(tmp_path), tmp_path / "edits", format="webdataset", triplets=True)
    (file,) = tmp_path.glob("edits/data/*.tar")
    members: dict[str, dict[str, bytes]] = {}
    with tarfile.open(file) as archive:
        for member in archive:
            sample, _, name = member.name.partition(".")
            opened = archive.extractfile(member)
            assert opened is not None
            members.setdefault(sample, {})[name] = opened.read()
    for images in members.values():
        names = ["input_image.png", "input_image_2.png"]
        found = [images[name] for name in names if name in images]
        assert found == INPUTS[images["txt"].decode()]


def test_triplets_of_a_job_grow(tmp_path: Path) -> None:
    run = _run(tmp_path)
    target = tmp_path / "edits"
    imagekiln.export(Path(run).parent, target, triplets=True)
    again = imagekiln.export(Path(run).parent, target, triplets=True)
    assert (again.images, again.unchanged) == (len(INPUTS), len(INPUTS))
    (file,) = target.glob("data/*.parquet")
    assert pq.read_table(file).num_rows == len(INPUTS)
    with pytest.raises(BadInput, match="triplets"):
        imagekiln.export(Path(run).parent, target)


def test_a_changed_input_image_is_named(tmp_path: Path) -> None:
    run = Path(_run(tmp_path))
    (first, *_) = sorted((run / "inputs").iterdir())
    first.write_bytes(noise(9))
    with pytest.raises(BadInput, match=f"{input_image_key(first.name)}: is not the planned image"):
        imagekiln.export(run, tmp_path / "edits", triplets=True)


def test_triplets_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    run = _run(tmp_path, carry=["edit_prompt"])
    with pytest.raises(BadInput, match="triplets: do not come as files"):
        imagekiln.export(run, tmp_path / "edits", format="files", triplets=True)
    with pytest.raises(BadInput, match="'edit_prompt': triplets have another column of this name"):
        imagekiln.export(run, tmp_path / "edits", triplets=True)
    imagekiln.export(run, tmp_path / "edits", columns=["seed"], triplets=True)
