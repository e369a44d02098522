"""What readers of folders find in an export: all that lies there, whatever its commits say."""

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.parts import pack_part
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.runs import Rows, begin_retry, encoded, planned, renumbered, retried

Row = dict[str, object]
Place = tuple[str, int]
Outcomes = Mapping[int, EncodedImage]


def contents_by_id(source: str, newest_by: str = "image_id") -> dict[str, bytes]:
    """The bytes of each image, as the reader of runs gives them."""
    images: dict[str, bytes] = {}
    dataset = imagekiln.dataset(source, columns=["image_id", "image"], newest_by=newest_by)
    for batch in dataset.to_batches():
        for row in batch.to_pylist():
            images[row["image_id"]] = row["image"]["bytes"]
    return images


def list_keys(store: Store, folder: str) -> Iterator[str]:
    """The keys of all objects below a folder, without what a killed process left of one."""
    for entry in sorted(store.list_folder(folder), key=lambda entry: entry.key):
        if entry.is_folder:
            yield from list_keys(store, entry.key)
        elif "/.writing-" not in entry.key:
            yield entry.key


def read_images(destination: str) -> dict[Place, tuple[str, bytes]]:
    """The id and the bytes of each image by its file and its place there, by a glob of `data/`."""
    store = open_store(destination)
    images: dict[Place, tuple[str, bytes]] = {}
    for key in list_keys(store, "data"):
        folder, _, name = key.rpartition("/")
        if name == "metadata.parquet":
            for place, row in enumerate(_read_rows(store, key)):
                picture = f"{folder}/{row['file_name']}"
                images[picture, place] = (str(row["image_id"]), store.read(picture))
                beside = json.loads(store.read(picture.replace(".png", ".json")))
                assert beside["image_id"] == row["image_id"]
        elif key.endswith(".parquet"):
            for place, row in enumerate(_read_rows(store, key)):
                images[key, place] = (str(row["image_id"]), row["image"]["bytes"])
        elif key.endswith(".tar"):
            for place, sample in enumerate(_tar_samples(store.read(key))):
                images[key, place] = sample
    return images


def images_by_id(destination: str) -> dict[str, bytes]:
    """The bytes of each image in all files. Fails if one is there twice."""
    images = read_images(destination)
    contents = dict(images.values())
    assert len(contents) == len(images)
    pictures = [key for key in list_keys(open_store(destination), "data") if key.endswith(".png")]
    assert {*pictures} <= {key for key, _ in images}
    return contents


def read_manifest(destination: str) -> list[Row]:
    """Every row of an export's manifest, by a glob."""
    store = open_store(destination)
    return [row for key in list_keys(store, "manifest") for row in _read_rows(store, key)]


def require_manifest(destination: str) -> None:
    """Fail unless the manifest says where each image is, and of no other."""
    named = {(row["file"], row["row"]): row["image_id"] for row in read_manifest(destination)}
    images = read_images(destination)
    assert named == {place: image_id for place, (image_id, _) in images.items()}


def _read_rows(store: Store, key: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(store.read(key))).to_pylist()
    return rows


def _tar_samples(content: bytes) -> list[tuple[str, bytes]]:
    samples = []
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            if member.name.endswith(".png"):
                samples.append((member.name.removesuffix(".png"), file.read()))
            elif member.name.endswith(".json"):
                assert json.loads(file.read())["image_id"] == samples[-1][0]
    return samples


def mend(run: PlanResult) -> None:
    """Make what failed in a run in a retry."""
    again = begin_retry(run)
    store = open_store(run.uri)
    for number in range(len(again.shards)):
        for part in read_shard(store, again, number):
            images = [encoded(90 + place) for place in range(part.rows.num_rows)]
            pack_part(part, renumbered(images)).commit(store)
    aggregate(run.uri)


def retried_run(
    scratch: Path, output: str, rows: Rows, run_id: str, carry: str, outcomes: Outcomes
) -> str:
    """A run of noise with these outcomes, whose one failed image a retry made again."""
    limits = {"failed_share": 0.5}
    result = planned(scratch, output, rows, run_id=run_id, limits=limits, carry=[carry])
    return retried(result, outcomes, encoded(0))
