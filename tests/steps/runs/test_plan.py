"""plan.json: what is written reads back, and anything else is refused in a sentence."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.plan import (
    creation_time,
    load_plan,
    parse_plan,
    plan_to_json,
)
from imagekiln.steps.storage import open_store
from tests.jobs import plan
from tests.s3 import S3_AMONG_SLOW


def refusal(content: bytes) -> str:
    """The sentence with which these bytes are refused."""
    with pytest.raises(BadInput) as error:
        parse_plan(content, "run/plan.json")
    return str(error.value)


def test_plan_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = plan(tmp_path, {"prompt": ["a"], "x": [1]}, carry=["x"], shard={"images": 8}).plan
    assert load_plan(open_store(f"{tmp_path}/out/{written.run_id}")) == written
    assert parse_plan(plan_to_json(written), "plan.json") == written


@S3_AMONG_SLOW
def test_folder_without_a_plan_says_how_to_find_a_run(store_uri: str) -> None:
    with pytest.raises(Missing, match=f"^{store_uri}: holds no plan. Name the folder of a run"):
        load_plan(open_store(store_uri))


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": ""},
        {"shards": [{"images": 10**12, "sha256": "0" * 64}]},
        {"shards": [{"images": 1, "sha256": "../../elsewhere".ljust(64, "0")}]},
        {"rejected": "/" * 64},
    ],
    ids=str,
)
def test_plan_that_somebody_edited_is_refused_in_a_sentence(
    changes: dict[str, object], tmp_path: Path
) -> None:
    content = json.loads(plan_to_json(plan(tmp_path, {"prompt": ["a"]}).plan))
    sentence = refusal(json.dumps(content | changes).encode())
    assert sentence.startswith("run/plan.json: ")
    assert sentence.endswith(" Restore it.")


def test_the_time_of_a_plan_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert creation_time() == datetime(1970, 1, 1, tzinfo=UTC)
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert (datetime.now(UTC) - creation_time()).days == 0
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(BadInput, match="seconds since 1970"):
        creation_time()
