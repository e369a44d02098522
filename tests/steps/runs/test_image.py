"""Image rows and the batches that they are drawn in."""

from pathlib import Path
from typing import Any

import pytest

from imagekiln.steps.runs.image import group_by_shape, image_rows
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from tests.runs import image_row, planned


def test_image_rows_keep_the_order_the_ids_and_the_settings_of_the_plan(tmp_path: Path) -> None:
    prompts = [
        {"prompt": "a red circle", "seed": 5, "width": 32},
        {"prompt": "zwei\nZeilen", "seed": 6, "width": 32},
    ]
    result = planned(tmp_path, str(tmp_path / "out"), prompts)
    [part] = read_shard(open_store(result.uri), result.plan, 0)
    first, second = image_rows(part.rows)
    assert [first.index_in_part, second.index_in_part] == [0, 1]
    assert [first.image_id, second.image_id] == part.rows["image_id"].to_pylist()
    assert first.parameters.prompt == "a red circle"
    assert second.parameters.prompt == "zwei\nZeilen"
    assert (first.parameters.seed, first.parameters.width) == (5, 32)
    assert (second.parameters.seed, second.parameters.width) == (6, 32)


@pytest.mark.parametrize(
    "settings",
    [
        {"width": 32},
        {"sampler": "ddim"},
        {"control_image": "a" * 64},
    ],
    ids=str,
)
def test_rows_of_another_shape_get_a_batch_of_their_own(settings: dict[str, Any]) -> None:
    rows = [image_row(place=0), image_row(place=1, **settings), image_row(place=2)]
    assert list(group_by_shape(rows)) == [[rows[0]], [rows[1]], [rows[2]]]


def test_prompts_negative_prompts_and_seeds_share_a_batch() -> None:
    rows = [image_row("a"), image_row("b", 1, negative_prompt="c"), image_row("d", 2, seed=9)]
    assert list(group_by_shape(rows)) == [rows]
