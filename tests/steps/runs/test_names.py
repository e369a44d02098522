import pytest

from imagekiln.steps.runs.keys import (
    PLAN_KEY,
    REJECTED_KEY,
    REPORT_KEY,
    SUCCESS_KEY,
    SUMMARY_KEY,
    manifest_key,
    part_key,
    registry_key,
    shard_key,
    stats_key,
)


def test_objects_of_a_run_have_the_documented_names() -> None:
    assert (PLAN_KEY, REJECTED_KEY, SUMMARY_KEY, SUCCESS_KEY) == (
        "plan.json",
        "rejected.parquet",
        "summary.json",
        "_SUCCESS",
    )
    assert REPORT_KEY == "report/index.html"
    assert shard_key(7) == "shards/00007.parquet"
    assert part_key(7, 12) == "images/00007-0012.parquet"
    assert stats_key(7) == "stats/00007.json"
    assert manifest_key(7) == "manifest/00007.parquet"
    assert registry_key(7) == "_runs/000007.json"


@pytest.mark.parametrize("name", [shard_key, stats_key, manifest_key])
def test_names_sort_as_their_numbers_do(name: object) -> None:
    assert callable(name)
    made = [name(number) for number in (0, 9, 10, 99, 100, 99_999)]
    assert made == sorted(made)


def test_no_two_parts_share_a_name() -> None:
    numbers = (0, 1, 9, 10, 11, 99, 100, 101, 9_999, 10_000, 99_999)
    made = {part_key(shard, part) for shard in numbers for part in numbers}
    assert len(made) == len(numbers) ** 2
