"""The names of a run's objects, which other tools rely on."""

from imagekiln.steps.runs import keys

DIGEST = "0123456789abcdef" * 4


def test_objects_of_a_run_have_the_documented_names() -> None:
    short = DIGEST[:32]
    assert keys.PLAN_KEY == "plan.json"
    assert keys.SUCCESS_KEY == "_SUCCESS"
    assert keys.REPORT_KEY == "report/index.html"
    assert keys.rejected_key(DIGEST) == f"rejected-{short}.parquet"
    assert keys.shard_key(7, DIGEST) == f"shards/00007-{short}.parquet"
    assert keys.shard_key(7, DIGEST, retry=3) == f"shards/r3-00007-{short}.parquet"
    assert keys.part_key(7, 12) == "images/00007-0012.parquet"
    assert keys.part_key(7, 12, retry=3) == "images/r3-00007-0012.parquet"
    assert keys.commit_key(7) == "commits/000007.json"
    assert keys.manifest_key(7, DIGEST) == f"manifest/00007-{short}.parquet"
    assert keys.forgotten_key(DIGEST) == f"forgotten/{short}.parquet"
    assert keys.attempt_key(7, short) == f"attempts/00007-{short}.json"
    assert keys.registry_key(7) == "_runs/000007.json"


def test_a_part_that_loses_images_again_and_again_has_one_suffix() -> None:
    planned = keys.part_key(7, 12, retry=3)
    reduced = keys.reduced_part_key(planned, 5)
    assert reduced == "images/r3-00007-0012.f5.parquet"
    assert keys.reduced_part_key(reduced, 8) == "images/r3-00007-0012.f8.parquet"
    assert keys.planned_part_key(reduced) == planned
