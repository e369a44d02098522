import pytest

from imagekiln.steps import names


def test_objects_of_a_run_have_the_documented_names() -> None:
    assert (names.PLAN_KEY, names.REJECTED_KEY, names.SUMMARY_KEY, names.SUCCESS_KEY) == (
        "plan.json",
        "rejected.parquet",
        "summary.json",
        "_SUCCESS",
    )
    assert names.REPORT_KEY == "report/index.html"
    assert names.shard_key(7) == "shards/00007.parquet"
    assert names.part_key(7, 12) == "images/00007-0012.parquet"
    assert names.stats_key(7) == "stats/00007.json"
    assert names.manifest_key(7) == "manifest/00007.parquet"
    assert names.registry_key(7) == "_runs/000007.json"


@pytest.mark.parametrize("name", [names.shard_key, names.stats_key, names.manifest_key])
def test_names_sort_as_their_numbers_do(name: object) -> None:
    assert callable(name)
    made = [name(number) for number in (0, 9, 10, 99, 100, 99_999)]
    assert made == sorted(made)


def test_no_two_parts_share_a_name() -> None:
    numbers = (0, 1, 9, 10, 11, 99, 100, 101, 9_999, 10_000, 99_999)
    made = {names.part_key(shard, part) for shard in numbers for part in numbers}
    assert len(made) == len(numbers) ** 2
