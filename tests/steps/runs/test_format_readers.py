"""Tars and files of a finished run, opened with the tools that people have: every prompt comes back as it was."""

import gc
import hashlib
import io
import json
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np
import polars as pl
import pytest
import webdataset
from PIL import Image

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.imaging.codecs import hash_pixels
from tests.runs import fill, not_ok, planned
from tests.texts import HOSTILE

datasets = import_module(
    "datasets"
)  # type checkers take the folder of that name in this repository for it
Loaded: TypeAlias = Any  # a datasets.Dataset
TEXTS = [*HOSTILE, "long " * 20_000, "none of this one"]
WANTED = TEXTS[:-1]
FORMATS = ["parquet", "webdataset", "files"]


def made(folder: Path, layout: str) -> Path:
    """A finished run with these prompts, the last of which failed."""
    rows = [
        {"prompt": text, "tag": text if place > 6 else None, "x_file_name": "/"}
        for place, text in enumerate(TEXTS)
    ]
    limits = {"prompt_chars": 200_000, "failed_share": 0.1}
    settings = {"format": layout, "limits": limits, "carry": ["tag", "x_file_name"]}
    there = planned(folder, str(folder / "out"), rows, **settings)
    fill(there, {len(TEXTS) - 1: not_ok(0)})
    aggregate(there.uri)
    return Path(there.uri)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run in each format."""
    return {layout: made(tmp_path_factory.mktemp(layout), layout) for layout in FORMATS}


@pytest.mark.parametrize("layout", FORMATS)
def test_hugging_face_datasets_takes_the_folder_as_its_card_says(
    runs: dict[str, Path], layout: str, tmp_path: Path
) -> None:
    loaded: Loaded = datasets.load_dataset(
        str(runs[layout]), split="train", cache_dir=str(tmp_path)
    )
    rows = [
        row["json"] | {"image": row["png"]} if layout == "webdataset" else row for row in loaded
    ]
    # Folders of files come in the order in which the disk lists them.
    rows = sorted(
        (row for row in rows if row["status"] == "ok"), key=lambda row: WANTED.index(row["prompt"])
    )
    assert [row["prompt"] for row in rows] == WANTED
    assert [row["tag"] for row in rows] == [None] * 7 + WANTED[7:]
    for row in rows:
        assert hash_pixels(np.asarray(row["image"])) == row["pixels_sha256"]


@pytest.mark.parametrize("layout", FORMATS)
def test_hugging_face_datasets_streams_the_folder(runs: dict[str, Path], layout: str) -> None:
    first = next(iter(datasets.load_dataset(str(runs[layout]), split="train", streaming=True)))
    assert first["png" if layout == "webdataset" else "image"].size == (16, 16)


def test_webdataset_gives_image_text_and_settings(runs: dict[str, Path]) -> None:
    tars = sorted(map(str, (runs["webdataset"] / "images").glob("*.tar")))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # it leaves files to be closed by the collector
        samples = list(webdataset.WebDataset(tars, shardshuffle=False).decode("rgb8"))
        gc.collect()
    assert [sample["txt"] for sample in samples] == WANTED
    assert [sample["json"]["prompt"] for sample in samples] == WANTED
    for sample in samples:
        assert sample["__key__"] == sample["json"]["image_id"]
        assert hash_pixels(sample["png"]) == sample["json"]["pixels_sha256"]


@pytest.mark.parametrize("layout", FORMATS)
def test_polars_reads_the_manifest_and_any_reader_the_range_that_it_names(
    runs: dict[str, Path], layout: str
) -> None:
    manifest = pl.read_parquet(runs[layout] / "manifest" / "*.parquet")
    assert manifest["prompt"].to_list() == TEXTS
    for part, offset, size, sha256 in (
        manifest.select("part", "offset", "size", "sha256").head(-1).iter_rows()
    ):
        content = (runs[layout] / part).read_bytes()[offset : offset + size]
        assert hashlib.sha256(content).hexdigest() == sha256


@pytest.mark.parametrize("layout", FORMATS[1:])
def test_duckdb_reads_the_indexes(runs: dict[str, Path], layout: str) -> None:
    found = duckdb.execute(
        f"SELECT prompt, status FROM '{runs[layout]}/index/*.parquet' ORDER BY row"
    ).fetchall()
    assert found == [*((text, "ok") for text in WANTED), (TEXTS[-1], "failed")]


def test_duckdb_joins_files_and_manifest(runs: dict[str, Path]) -> None:
    run = runs["files"]
    found = duckdb.execute(f"""
        SELECT prompt, sha256(content) = manifest.sha256 FROM '{run}/manifest/*.parquet' AS manifest
        JOIN read_blob('{run}/images/*/*.png') AS files ON ends_with(files.filename, part) ORDER BY row""").fetchall()
    assert found == [(text, True) for text in WANTED]


def test_each_file_has_its_prompt_beside_it(runs: dict[str, Path]) -> None:
    told = [
        json.loads(path.read_text()) for path in sorted((runs["files"] / "images").glob("*/*.json"))
    ]
    assert [each["prompt"] for each in told] == TEXTS
    pictures = sorted((runs["files"] / "images").glob("*/*.png"))
    for path, each in zip(pictures, told[:-1], strict=True):
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            assert hash_pixels(np.asarray(image)) == each["pixels_sha256"]


@pytest.mark.parametrize("layout", FORMATS)
def test_no_name_holds_a_text_of_the_user_s(runs: dict[str, Path], layout: str) -> None:
    names = {str(path.relative_to(runs[layout])) for path in runs[layout].rglob("*")}
    assert all(name.isascii() and "passwd" not in name and " " not in name for name in names)
