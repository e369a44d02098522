"""What every store promises, and committing to it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import (
    create_once,
    require_conditional_writes,
)
from tests import jobs
from tests.s3 import S3Server, log_in
from tests.stub_s3 import StubS3, stub_s3

WRITERS = 32
PROMPTS = {"prompt": [f"a red circle number {number}" for number in range(24)]}
MANY_SHARDS = {
    "batch": {"images": 2},
    "part": {"images": 2},
    "shard": {"images": 2},
    "run_id": "run",
}


@pytest.fixture
def unconditional_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubS3]:
    """A store that ignores If-None-Match."""
    with stub_s3(conditional=False) as store:
        log_in(S3Server(store.endpoint), monkeypatch)
        yield store


def test_object_reads_back_as_it_was_written(store_uri: str) -> None:
    store = open_store(store_uri)
    content = bytes(range(256)) * 5000
    assert store.create("images/00000-0000.parquet", content)
    assert store.read("images/00000-0000.parquet") == content
    with store.open("images/00000-0000.parquet") as file:
        file.seek(-300, 2)
        assert file.read(100) == content[-300:-200]


def test_of_many_writers_at_once_one_wins(store_uri: str) -> None:
    stores = [open_store(store_uri) for _ in range(WRITERS)]
    contents = [f"writer {number}".encode() * 10_000 for number in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as pool:
        outcomes = list(
            pool.map(lambda store, content: store.create("part", content), stores, contents)
        )
    assert outcomes.count(True) == 1
    assert stores[0].read("part") == contents[outcomes.index(True)]


def test_replaced_object_has_the_last_content(store_uri: str) -> None:
    store = open_store(store_uri)
    store.replace("summary.json", b"long and old")
    store.replace("summary.json", b"new")
    assert store.read("summary.json") == b"new"


def test_object_exists_from_creation_to_removal(store_uri: str) -> None:
    store = open_store(store_uri)
    assert not store.exists("a/b")
    store.create("a/b", b"x")
    assert store.exists("a/b")
    assert not store.exists("a/c")
    store.remove("a/b")
    assert not store.exists("a/b")
    assert store.create("a/b", b"y")


def test_object_that_does_not_exist_is_missing(store_uri: str) -> None:
    store = open_store(store_uri)
    store.create("other", b"x")
    with pytest.raises(Missing, match=r"plan\.json: no such file"):
        store.read("plan.json")
    with pytest.raises(Missing, match=r"plan\.json: no such file"), store.open("plan.json"):
        pass


def test_existing_object_takes_the_same_content_and_no_other(store_uri: str) -> None:
    store = open_store(store_uri)
    for _ in range(2):
        create_once(store, "plan.json", b"the plan")
        require_conditional_writes(store, "plan.json", b"the plan")
    with pytest.raises(BadInput, match=r"plan\.json: exists with other content"):
        create_once(store, "plan.json", b"another")
    assert store.read("plan.json") == b"the plan"


def test_commit_whose_answer_was_lost_is_not_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_s3() as stub:
        log_in(S3Server(stub.endpoint), monkeypatch)
        stub.faults.append("lost")
        create_once(open_store("s3://bucket/run"), "plan.json", b"the plan")
        assert stub.objects == {"/bucket/run/plan.json": b"the plan"}
        assert stub.requests.count("PUT /bucket/run/plan.json") == 2


def test_store_without_conditional_writes_is_refused_at_planning_with_nothing_left(
    unconditional_store: StubS3, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="ignores conditional writes"):
        jobs.plan(tmp_path, PROMPTS, output="s3://bucket/out", **MANY_SHARDS)
    assert unconditional_store.objects == {}


def test_job_may_accept_a_store_without_conditional_writes(
    unconditional_store: StubS3, tmp_path: Path
) -> None:
    accept = {"unconditional_writes": "accept", **MANY_SHARDS}
    planned = jobs.plan(tmp_path, PROMPTS, output="s3://bucket/out", **accept)
    assert len(planned.plan.shards) == 12
    assert "/bucket/out/run/plan.json" in unconditional_store.objects


def test_file_system_that_only_looks_before_it_writes_is_refused_with_nothing_left(
    looking_first: str, tmp_path: Path
) -> None:
    (tmp_path / "out/run/shards").mkdir(parents=True)  # this one makes no folders
    with pytest.raises(BadInput, match="ignores conditional writes"):
        jobs.plan(tmp_path, PROMPTS, output=f"{looking_first}{tmp_path}/out", **MANY_SHARDS)
    assert jobs.files(tmp_path / "out") == {}
