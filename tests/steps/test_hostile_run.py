"""Run folders that a stranger changed: each command ends with a result or a sentence."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.dataset.dataset import open_dataset
from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.manifest import (
    MANIFEST_COLUMNS,
    read_manifest,
    read_manifest_columns,
)
from imagekiln.steps.storage import open_store
from tests import hostile_published
from tests.hostile import commands, finished_output, replace_column, try_changes

# huggingface_hub 2.4.0 passes bytes as `data`, which its HTTP client deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(5, 60, 5))]
)
def test_one_changed_object_leads_to_a_result_or_a_sentence(first: int) -> None:
    assert try_changes(range(first, first + 5)) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 5])
def test_one_changed_object_of_an_export_leads_to_a_result_or_a_sentence(first: int) -> None:
    assert hostile_published.try_changes(range(first, first + 5)) == []


ODD_VALUES = {
    "zone": pa.scalar(7, pa.timestamp("us", "Mars/Phobos")),
    "zone within": pa.scalar({"a": 7}, pa.struct([("a", pa.timestamp("us", "../x"))])),
    "view": pa.scalar("x", pa.string_view()),
    "view within": pa.scalar(["x"], pa.list_(pa.string_view())),
    "decimal": pa.scalar(Decimal(7), pa.decimal256(76, 3)),
    "duration": pa.scalar(2**62, pa.duration("s")),
}
QUICK = ("zone", "view")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(pytest.param(name, marks=pytest.mark.slow) for name in ODD_VALUES if name not in QUICK),
    ],
)
def test_a_carried_column_of_an_odd_type_leads_to_a_result_or_a_sentence(
    tmp_path: Path, name: str
) -> None:
    output = shutil.copytree(finished_output("webdataset"), tmp_path / "user") / "out"
    replace_column(output / "run", "topic", ODD_VALUES[name])
    readers: list[Callable[[], object]] = [
        lambda: list(open_dataset(str(output), newest_by="topic").to_batches()),
        *(command for _, command in commands(output)),
    ]
    for read in readers:
        with suppress(KilnError):
            read()


def test_manifest_of_fewer_images_than_were_planned_is_damaged(tmp_path: Path) -> None:
    run = shutil.copytree(finished_output("parquet") / "out" / "run", tmp_path / "run")
    path = run / manifest_key(0)
    manifest = pq.read_table(path)
    images = manifest.num_rows
    pq.write_table(manifest.slice(1), path)
    store = open_store(str(run))
    for read in (read_manifest, partial(read_manifest_columns, columns=["image_id"])):
        with pytest.raises(BadInput, match=f"it has {images - 1} rows for {images} images"):
            read(store, 0, images)


def test_manifest_without_a_column_that_each_has_is_damaged(tmp_path: Path) -> None:
    run = shutil.copytree(finished_output("parquet") / "out" / "run", tmp_path / "run")
    path = run / manifest_key(0)
    manifest = pq.read_table(path)
    for name in MANIFEST_COLUMNS:
        pq.write_table(manifest.drop_columns([name]), path)
        with pytest.raises(BadInput, match=f"the column {name} is missing"):
            read_manifest(open_store(str(run)), 0, manifest.num_rows)
