from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import create_once, require_conditional_writes
from tests import jobs
from tests.s3 import S3Server, log_in
from tests.stub_s3 import StubS3, stub_s3

PROMPTS = {"prompt": [f"a red circle number {number}" for number in range(24)]}
MANY_SHARDS = {
    "batch": {"images": 2},
    "part": {"images": 2},
    "shard": {"images": 2},
    "run_id": "run",
}


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubS3]:
    """A store that ignores If-None-Match."""
    with stub_s3(conditional=False) as store:
        log_in(S3Server(store.endpoint), monkeypatch)
        yield store


def test_same_content_may_be_committed_again(store_uri: str) -> None:
    store = open_store(store_uri)
    for _ in range(2):
        create_once(store, "plan.json", b"the plan")
    assert store.read("plan.json") == b"the plan"


def test_other_content_under_a_taken_name_is_refused(store_uri: str) -> None:
    store = open_store(store_uri)
    create_once(store, "plan.json", b"the plan")
    with pytest.raises(BadInput, match=r"plan\.json: is there with other content"):
        create_once(store, "plan.json", b"another")
    assert store.read("plan.json") == b"the plan"


def test_commit_whose_answer_was_lost_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_s3() as stub:
        log_in(S3Server(stub.endpoint), monkeypatch)
        stub.faults.append("lost")
        create_once(open_store("s3://bucket/run"), "plan.json", b"the plan")
        assert stub.objects == {"/bucket/run/plan.json": b"the plan"}
        assert stub.requests.count("PUT /bucket/run/plan.json") == 2


def test_store_that_keeps_its_promise_passes_and_keeps_the_object(store_uri: str) -> None:
    store = open_store(store_uri)
    create_once(store, "shards/00000.parquet", b"rows")
    require_conditional_writes(store, "shards/00000.parquet", b"rows")
    assert store.read("shards/00000.parquet") == b"rows"


def test_store_without_conditional_writes_is_refused_at_planning_with_nothing_left(
    forgetful: StubS3, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="ignores conditional writes"):
        jobs.plan(tmp_path, PROMPTS, output="s3://bucket/out", **MANY_SHARDS)
    assert forgetful.objects == {}


def test_job_may_accept_a_store_without_conditional_writes(
    forgetful: StubS3, tmp_path: Path
) -> None:
    accept = {"unconditional_writes": "accept", **MANY_SHARDS}
    planned = jobs.plan(tmp_path, PROMPTS, output="s3://bucket/out", **accept)
    assert len(planned.plan.shards) == 12
    assert "/bucket/out/run/plan.json" in forgetful.objects


def test_file_system_that_only_looks_before_it_writes_is_refused_with_nothing_left(
    tmp_path: Path,
) -> None:
    (tmp_path / "out/run/shards").mkdir(parents=True)  # this one makes no folders
    with pytest.raises(BadInput, match="ignores conditional writes"):
        jobs.plan(tmp_path, PROMPTS, output=f"local://{tmp_path}/out", **MANY_SHARDS)
    assert jobs.files(tmp_path / "out") == {}
