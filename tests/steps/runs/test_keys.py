"""The names of a run's objects, which other tools rely on."""

from collections.abc import Callable

import pytest

from imagekiln.steps.runs.keys import (
    PLAN_KEY,
    REJECTED_KEY,
    REPORT_KEY,
    SUCCESS_KEY,
    SUMMARY_KEY,
    image_key,
    index_key,
    manifest_key,
    parse_part_key,
    part_key,
    registry_key,
    shard_key,
    stats_key,
    tar_key,
)


def test_objects_of_a_run_have_the_documented_names() -> None:
    assert PLAN_KEY == "plan.json"
    assert REJECTED_KEY == "rejected.parquet"
    assert SUMMARY_KEY == "summary.json"
    assert SUCCESS_KEY == "_SUCCESS"
    assert REPORT_KEY == "report/index.html"
    assert shard_key(7) == "shards/00007.parquet"
    assert part_key(7, 12) == "images/00007-0012.parquet"
    assert stats_key(7) == "stats/00007.json"
    assert manifest_key(7) == "manifest/00007.parquet"
    assert registry_key(7) == "_runs/000007.json"


def test_objects_of_a_part_are_named_after_its_index() -> None:
    index = index_key(7, 12)
    assert index == "index/00007-0012.parquet"
    assert tar_key(index) == "images/00007-0012.tar"
    assert image_key(index, 3, ".png") == "images/00007/0012-00003.png"


@pytest.mark.parametrize("make_key", [shard_key, stats_key, manifest_key])
def test_names_sort_as_their_numbers_do(make_key: Callable[[int], str]) -> None:
    names = [make_key(number) for number in (0, 9, 10, 99, 100, 99_999)]
    assert names == sorted(names)


def test_round_and_shard_follow_from_the_key_of_an_image() -> None:
    assert parse_part_key(part_key(7, 12)) == (0, 7)
    assert parse_part_key(f"retry-2/{index_key(7, 12)}") == (2, 7)
    assert parse_part_key(image_key(index_key(7, 12), 3, ".png")) == (0, 7)
    assert parse_part_key("elsewhere/00007.parquet") is None
