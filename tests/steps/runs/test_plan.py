import json
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.plan import load_plan, parse_plan, plan_to_json
from imagekiln.steps.storage import open_store
from tests.jobs import plan


def _told(content: bytes) -> str:
    with pytest.raises(BadInput) as caught:
        parse_plan(content, "run/plan.json")
    return str(caught.value)


def test_plan_reads_back_as_it_was_written(tmp_path: Path) -> None:
    made = plan(tmp_path, {"prompt": ["a"], "x": [1]}, carry=["x"], shard={"images": 8}).plan
    assert load_plan(open_store(f"{tmp_path}/out/{made.run_id}")) == made
    assert parse_plan(plan_to_json(made), "it") == made


def test_parts_of_a_shard_are_counted_from_its_images(tmp_path: Path) -> None:
    made = plan(
        tmp_path,
        {"prompt": ["a"], "images": [21]},
        batch={"images": 4},
        part={"images": 8},
        shard={"images": 16},
    ).plan
    assert [
        (shard.images, made.part_count(number)) for number, shard in enumerate(made.shards)
    ] == [(16, 2), (5, 1)]


def test_folder_without_a_plan_is_told_so(store_uri: str) -> None:
    with pytest.raises(Missing) as caught:
        load_plan(open_store(f"{store_uri}/run"))
    assert str(caught.value) == (
        f"{store_uri}/run: holds no plan. Run `imagekiln plan` first, or check the run's name."
    )


def test_plan_of_another_version_is_refused_before_it_is_read(tmp_path: Path) -> None:
    content = json.loads(plan_to_json(plan(tmp_path, {"prompt": ["a"]}).plan))
    assert _told(json.dumps({**content, "schema_version": 2, "job": "other"}).encode()) == (
        "run/plan.json: has version 2, and this Imagekiln reads 1. Use its own."
    )


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"{}", b"\xff", b'{"schema_version": 1}', b'"x"']
)
def test_what_is_no_plan_is_told_in_one_sentence(content: bytes) -> None:
    assert _told(content).startswith("run/plan.json: is no plan that can be read (")
    assert _told(content).endswith("). Restore it.")
    assert "\n" not in _told(content)


def test_plan_with_a_setting_out_of_bounds_is_refused(tmp_path: Path) -> None:
    content = plan_to_json(plan(tmp_path, {"prompt": ["a"]}).plan).replace(
        b'"steps": 30', b'"steps": 0'
    )
    assert "job.defaults.steps" in _told(content)
