"""Run folders that a stranger changed: each command ends with a result or a sentence."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.manifest import MANIFEST_COLUMNS, read_manifest
from imagekiln.steps.storage import open_store
from tests import hostile_published
from tests.hostile import finished_output, try_changes

# huggingface_hub 2.4.0 passes bytes as `data`, which its HTTP client deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.mark.parametrize(
    "first", [0, 10, 20, *(pytest.param(first, marks=pytest.mark.slow) for first in (30, 40, 50))]
)
def test_one_changed_object_leads_to_a_result_or_a_sentence(first: int) -> None:
    assert try_changes(range(first, first + 10)) == []


@pytest.mark.parametrize("first", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_one_changed_object_of_an_export_leads_to_a_result_or_a_sentence(first: int) -> None:
    assert hostile_published.try_changes(range(first, first + 5)) == []


def test_manifest_without_a_column_that_each_has_is_damaged(tmp_path: Path) -> None:
    run = shutil.copytree(finished_output("parquet") / "out" / "run", tmp_path / "run")
    path = run / manifest_key(0)
    manifest = pq.read_table(path)
    for name in MANIFEST_COLUMNS:
        pq.write_table(manifest.drop_columns([name]), path)
        with pytest.raises(BadInput, match=f"the column {name} is missing"):
            read_manifest(open_store(str(run)), 0, manifest.num_rows)
