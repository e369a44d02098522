"""Finished runs, and exports of them in each format, opened with the tools that people have.

Every prompt comes back as it was, every image as it was drawn, and none of it needs Imagekiln.
"""

import gc
import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # it ships no types
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.imaging.codecs import hash_pixels
from tests.runs import IMAGES, PROMPTS, fill, finished, not_ok, planned
from tests.texts import HOSTILE

# By name, because type checkers take this repository's folder `datasets` for the library.
datasets = import_module("datasets")
Dataset: TypeAlias = Any
IDS = [row["id"] for row in PROMPTS]
TEXTS = [*HOSTILE, "long " * 700, "of the image that failed"]
OK_TEXTS = TEXTS[:-1]
UNTAGGED = 7  # the first rows, so that a reader that infers types from them finds nulls
FORMATS = ["parquet", "webdataset", "files"]


def manifest_files(run: Path) -> list[str]:
    """The manifests of a run, as the card says to find them."""
    commit = json.loads(max(run.glob("commits/*.json")).read_text())
    return [str(run / name) for name in commit["manifests"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 20 images in five parts of Parquet."""
    return Path(finished(tmp_path_factory.mktemp("readers") / "run").uri)


@pytest.fixture(scope="module")
def parts(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The parts of that run as Hugging Face datasets loads them."""
    return datasets.load_dataset(
        "parquet",
        data_files=str(run / "images" / "*.parquet"),
        split="train",
        cache_dir=str(tmp_path_factory.mktemp("cache")),
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with the prompts of `TEXTS`, the last of which failed."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [
        {"prompt": text, "tag": text if index >= UNTAGGED else None, "x_file_name": "/"}
        for index, text in enumerate(TEXTS)
    ]
    limits = {"failed_share": 0.1}
    carry = ["tag", "x_file_name"]
    result = planned(folder, str(folder / "out"), rows, limits=limits, carry=carry)
    fill(result, {len(TEXTS) - 1: not_ok(0)})
    aggregate(result.uri)
    return Path(result.uri)


@pytest.fixture(scope="module")
def exports(hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An export of that run in each format."""
    folder = tmp_path_factory.mktemp("exports")
    for name in FORMATS:
        imagekiln.export(hostile, folder / name, format=name)
    return {name: folder / name for name in FORMATS}


def test_hugging_face_datasets_knows_the_images_for_images(parts: Dataset) -> None:
    assert parts.features["image"] == datasets.Image()
    assert parts.features["seed"].dtype == "int64"
    assert parts.num_rows == IMAGES


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("format_name", ["a run", *FORMATS])
def test_hugging_face_datasets_loads_the_folder_as_its_card_says(
    exports: dict[str, Path], hostile: Path, format_name: str, tmp_path: Path
) -> None:
    folder = hostile if format_name == "a run" else exports[format_name]
    dataset: Dataset = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path))
    rows = [
        row["json"] | {"image": row["png"]} if format_name == "webdataset" else row
        for row in dataset
    ]
    # Folders of files come in the order in which the disk lists them.
    rows.sort(key=lambda row: OK_TEXTS.index(row["prompt"]))
    assert [row["prompt"] for row in rows] == OK_TEXTS
    assert [row["tag"] for row in rows] == [None] * UNTAGGED + OK_TEXTS[UNTAGGED:]
    for row in rows:
        assert hash_pixels(np.asarray(row["image"])) == row["pixels_sha256"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_hugging_face_datasets_streams_the_folder(
    exports: dict[str, Path], format_name: str
) -> None:
    stream = datasets.load_dataset(str(exports[format_name]), split="train", streaming=True)
    first = next(iter(stream))
    assert first["png" if format_name == "webdataset" else "image"].size == (16, 16)


def test_imagefolder_takes_the_pictures_for_what_they_are(
    exports: dict[str, Path], tmp_path: Path
) -> None:
    found: Dataset = datasets.load_dataset(
        "imagefolder",
        data_dir=str(exports["files"] / "data"),
        split="train",
        cache_dir=str(tmp_path),
    )
    assert sorted(found["prompt"]) == sorted(OK_TEXTS)
    assert "label" not in found.column_names
    for row in found:
        assert hash_pixels(np.asarray(row["image"])) == row["pixels_sha256"]


FIRST_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
SQL = re.compile(r"```sql\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def thinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four parts: the first has no image, the next two lack some, one taken down."""
    folder = tmp_path_factory.mktemp("thinned")
    rows = PROMPTS[:16]
    result = planned(folder, str(folder / "out"), rows, limits={"failed_share": 1})
    lost = {place: not_ok(place % 4) for place in range(5)}
    lost |= {6: not_ok(2, "blank"), 9: not_ok(1, "filtered")}
    fill(result, lost)
    aggregate(result.uri)
    imagekiln.forget(result.uri, ids=["row-11"], remove=True)
    return Path(result.uri)


def test_whoever_loads_a_run_by_its_card_gets_images_only(thinned: Path, tmp_path: Path) -> None:
    card = (thinned / "README.md").read_text()
    code = FIRST_CODE.findall(card)[0].replace("path/to/this/folder", str(thinned))
    names: dict[str, Any] = {}
    exec(code.replace("split=", f"cache_dir={str(tmp_path)!r}, split="), names)  # noqa: S102  # the card's own
    assert len(names["images"]) == 8
    assert all(row["image"].size == (16, 16) for row in names["images"])
    assert len(names["manifest"]) == 16
    stream = datasets.load_dataset(str(thinned), split="train", streaming=True)
    assert [row["id"] for row in stream] == names["images"]["id"]


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: pa.Table.from_pandas(duckdb.execute(f"from '{folder}/*.parquet'").df()),
        lambda folder: pl.read_parquet(folder / "*.parquet").to_arrow(),
        lambda folder: pa.Table.from_pandas(pd.read_parquet(folder)),
        lambda folder: pyarrow.dataset.dataset(folder).to_table(),
    ],
    ids=["DuckDB", "Polars", "pandas", "pyarrow"],
)
def test_any_reader_of_parts_gets_images_only(
    read: Callable[[Path], pa.Table], thinned: Path
) -> None:
    rows = read(thinned / "images")
    assert [row["image"]["bytes"][:4] for row in rows.to_pylist()] == [b"\x89PNG"] * 8


def test_what_became_of_the_others_is_in_the_manifests_that_the_highest_commit_names(
    thinned: Path,
) -> None:
    assert len(list(thinned.glob("manifest/*.parquet"))) > len(manifest_files(thinned))
    found = Counter(pq.read_table(manifest_files(thinned))["status"].to_pylist())
    assert found == {"ok": 8, "failed": 5, "blank": 1, "filtered": 1, "forgotten": 1}
    assert imagekiln.verify(thinned).statuses == found


def test_the_card_counts_by_the_highest_commit_in_duckdb(
    thinned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(thinned)
    sql = SQL.findall((thinned / "README.md").read_text())[0]
    found = duckdb.connect().execute(sql).fetchall()
    assert dict(found) == {"ok": 8, "failed": 5, "blank": 1, "filtered": 1, "forgotten": 1}


def test_webdataset_gives_image_text_and_settings(exports: dict[str, Path]) -> None:
    tars = sorted(map(str, (exports["webdataset"] / "data").glob("*.tar")))
    with warnings.catch_warnings():
        # WebDataset leaves files to be closed by the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(webdataset.WebDataset(tars, shardshuffle=False).decode("rgb8"))
        gc.collect()
    assert [sample["txt"] for sample in samples] == OK_TEXTS
    assert [sample["json"]["prompt"] for sample in samples] == OK_TEXTS
    for sample in samples:
        assert sample["__key__"] == sample["json"]["image_id"]
        assert hash_pixels(sample["png"]) == sample["json"]["pixels_sha256"]


def test_every_picture_has_its_row_beside_it(exports: dict[str, Path]) -> None:
    pictures = sorted(exports["files"].glob("data/*/*.png"))
    rows = [json.loads(picture.with_suffix(".json").read_text()) for picture in pictures]
    assert [row["prompt"] for row in rows] == OK_TEXTS
    for picture, row in zip(pictures, rows, strict=True):
        with Image.open(picture) as image:
            assert hash_pixels(np.asarray(image)) == row["pixels_sha256"]


def test_duckdb_joins_manifest_and_images(run: Path) -> None:
    rows = duckdb.execute(f"""
        SELECT manifest.id, manifest.sha256, image.bytes, manifest.byte_size
        FROM read_parquet({manifest_files(run)}) AS manifest
        JOIN '{run}/images/*.parquet' AS parts USING (image_id)
        WHERE manifest.status = 'ok'
        ORDER BY CAST(manifest.id[5:] AS INTEGER)""").fetchall()
    assert [row[0] for row in rows] == IDS
    for _, sha256, content, size in rows:
        assert len(content) == size
        assert hashlib.sha256(content).hexdigest() == sha256


def test_polars_reads_the_manifest_and_any_reader_the_range_that_it_names(hostile: Path) -> None:
    manifest = pl.read_parquet(manifest_files(hostile))
    assert manifest["prompt"].to_list() == TEXTS
    locations = manifest.select("part", "byte_offset", "byte_size", "sha256").head(-1)
    for part, offset, size, sha256 in locations.iter_rows():
        content = (hostile / part).read_bytes()[offset : offset + size]
        assert hashlib.sha256(content).hexdigest() == sha256


def test_no_name_holds_user_text(exports: dict[str, Path], hostile: Path) -> None:
    folders = [hostile, *exports.values()]
    names = {str(path.relative_to(folder)) for folder in folders for path in folder.rglob("*")}
    assert all(name.isascii() and "passwd" not in name and " " not in name for name in names)
