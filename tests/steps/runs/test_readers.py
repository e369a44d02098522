"""A finished run, opened with the tools that people have. None of them needs code of ours."""

import hashlib
import io
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # it ships no types
import polars as pl
import pytest
from PIL import Image

from imagekiln.steps.imaging.codecs import hash_pixels
from tests.runs import IMAGES, PROMPTS, finished

datasets = import_module(
    "datasets"
)  # type checkers take the folder of that name in this repository for it
Loaded: TypeAlias = Any  # a datasets.Dataset
IDS = [row["id"] for row in PROMPTS]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 20 images in five parts."""
    return Path(finished(tmp_path_factory.mktemp("readers") / "run").uri)


@pytest.fixture(scope="module")
def loaded(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The parts as Hugging Face datasets loads them."""
    return datasets.load_dataset(
        "parquet",
        data_files=str(run / "images" / "*.parquet"),
        split="train",
        cache_dir=str(tmp_path_factory.mktemp("cache")),
    )


def test_hugging_face_datasets_knows_the_images_for_images(loaded: Loaded) -> None:
    assert loaded.features["image"] == datasets.Image()
    assert loaded.features["seed"].dtype == "int64"
    assert loaded.num_rows == IMAGES


def test_hugging_face_datasets_decodes_the_pixels_that_were_drawn(loaded: Loaded) -> None:
    for row in loaded:
        assert hash_pixels(np.asarray(row["image"])) == row["pixels_sha256"]
    assert sorted(loaded["id"]) == sorted(IDS)


def test_hugging_face_datasets_streams_the_images(run: Path) -> None:
    streamed = datasets.load_dataset(
        "parquet", data_files=str(run / "images" / "*.parquet"), split="train", streaming=True
    )
    first = next(iter(streamed))
    assert (first["image"].size, first["image"].mode, first["id"]) == ((16, 16), "RGB", "row-0")


def test_duckdb_joins_manifest_and_images(run: Path) -> None:
    found = duckdb.execute(f"""
        SELECT manifest.id, manifest.sha256, image.bytes AS content, octet_length(image.bytes) = manifest.size AS fits
        FROM '{run}/manifest/*.parquet' AS manifest JOIN '{run}/images/*.parquet' AS parts USING (image_id)
        WHERE manifest.status = 'ok' ORDER BY CAST(manifest.id[5:] AS INTEGER)""").fetchall()
    assert [row[0] for row in found] == IDS
    for _, sha256, content, fits in found:
        assert fits
        assert hashlib.sha256(content).hexdigest() == sha256


def test_duckdb_reads_metadata_by_group(run: Path) -> None:
    found = duckdb.execute(
        f"SELECT status, count(*), min(width) FROM '{run}/manifest/*.parquet' GROUP BY status"
    ).fetchall()
    assert found == [("ok", IMAGES, 16)]


def test_polars_reads_manifest_and_images(run: Path) -> None:
    manifest = pl.read_parquet(run / "manifest" / "*.parquet")
    images = pl.scan_parquet(run / "images" / "*.parquet").select("image_id", "image").collect()
    joined = manifest.join(images, on="image_id", maintain_order="left").unnest("image")
    assert joined["id"].to_list() == IDS
    for content, sha256 in joined.select("bytes", "sha256").iter_rows():
        assert hashlib.sha256(content).hexdigest() == sha256


def test_pandas_reads_manifest_and_images(run: Path) -> None:
    manifest = pd.read_parquet(run / "manifest")
    assert manifest["id"].tolist() == IDS
    assert (manifest["status"] == "ok").all()
    part = pd.read_parquet(run / "images" / "00000-0000.parquet")
    with Image.open(io.BytesIO(part["image"][0]["bytes"])) as image:
        assert hash_pixels(np.asarray(image)) == part["pixels_sha256"][0]


def test_an_image_is_a_ranged_read_without_any_parquet_reader(run: Path) -> None:
    for row in pd.read_parquet(run / "manifest").to_dict("records"):
        with (run / row["part"]).open("rb") as file:
            file.seek(row["offset"])
            content = file.read(row["size"])
        assert hashlib.sha256(content).hexdigest() == row["sha256"]
        with Image.open(io.BytesIO(content)) as image:
            assert image.format == "PNG"
