"""A shard: its parts in order, and those that are missing."""

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.parts import Part, pack_part
from imagekiln.steps.runs.shard import (
    count_images,
    missing_parts,
    read_shard,
)
from imagekiln.steps.runs.tables import ORIGIN_SCHEMA
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import jobs
from tests.s3 import S3_AMONG_SLOW

IMAGES = 22  # in shards of 10, 10 and 2, in parts of 4
PROMPTS = {"prompt": [f"a red circle number {number}" for number in range(IMAGES)]}


def planned(tmp_path: Path, output: str) -> PlanResult:
    cut = {"batch": {"images": 2}, "part": {"images": 4}, "shard": {"images": 8}}
    return jobs.plan(tmp_path, PROMPTS, output=output, **cut)


def make(store: Store, part: Part) -> None:
    """Commit a part whose images all failed: only its names matter here."""
    failed = [EncodedImage(index, "failed", "not drawn") for index in range(part.rows.num_rows)]
    pack_part(part, failed).commit(store)


def missing_keys(store: Store, parts: Sequence[Part]) -> list[str]:
    return [part.key for part in missing_parts(store, parts)]


@S3_AMONG_SLOW
def test_parts_of_all_shards_are_the_planned_images_in_order(
    tmp_path: Path, store_uri: str
) -> None:
    result = planned(tmp_path, store_uri)
    store = open_store(result.uri)
    shards = [read_shard(store, result.plan, number) for number in range(3)]
    assert len(result.plan.shards) == 3
    assert [[part.rows.num_rows for part in parts] for parts in shards] == [[4, 4], [4, 4], [4, 2]]
    assert [part.key for part in shards[1]] == [
        "images/00001-0000.parquet",
        "images/00001-0001.parquet",
    ]
    rows = pa.concat_tables([part.rows for parts in shards for part in parts])
    assert rows.drop_columns(ORIGIN_SCHEMA.names) == jobs.image_rows(result)
    assert [count_images(parts) for parts in shards] == [8, 8, 6]


@pytest.mark.parametrize("number", [-1, 3, 10**6])
def test_shard_that_the_plan_does_not_have_is_bad_input(tmp_path: Path, number: int) -> None:
    result = planned(tmp_path, str(tmp_path / "out"))
    with pytest.raises(BadInput, match=f"has shards 0 to 2, not {number}"):
        read_shard(open_store(result.uri), result.plan, number)


def test_missing_parts_are_found_wherever_the_gaps_are(tmp_path: Path, store_uri: str) -> None:
    result = planned(tmp_path, store_uri)
    store = open_store(result.uri)
    parts = [part for number in range(3) for part in read_shard(store, result.plan, number)]
    assert missing_keys(store, parts) == [part.key for part in parts]
    for number in (5, 0, 3):
        make(store, parts[number])
    assert missing_keys(store, parts) == [parts[number].key for number in (1, 2, 4)]
    for number in (1, 2, 4):
        make(store, parts[number])
    assert missing_parts(store, parts) == []


def test_rows_of_a_part_say_which_run_and_model_they_are_from(tmp_path: Path) -> None:
    result = planned(tmp_path, str(tmp_path / "out"))
    (part, *_) = read_shard(open_store(result.uri), result.plan, 0)
    (origin,) = set(zip(*part.rows.select(ORIGIN_SCHEMA.names).to_pydict().values(), strict=True))
    run_id, model, revision, created_at = origin
    assert (run_id, revision) == (result.plan.run_id, result.plan.model.digest)
    assert model == Path(result.plan.job.model.id).name
    assert created_at.replace(tzinfo=UTC) == result.plan.created_at
