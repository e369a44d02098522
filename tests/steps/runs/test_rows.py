"""Image rows and the batches they are made in."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from imagekiln.steps.runs.image import ImageParameters, group_by_shape, image_rows, pad_rows
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from tests.runs import image_row, planned


def test_image_rows_keep_the_order_the_ids_and_the_settings_of_the_plan(tmp_path: Path) -> None:
    prompts = [
        {"prompt": "a red circle", "seed": 5, "width": 32},
        {"prompt": "zwei\nZeilen", "seed": 6, "width": 32},
    ]
    there = planned(tmp_path, str(tmp_path / "out"), prompts)
    (part,) = read_shard(open_store(there.uri), there.plan, 0)
    found = image_rows(part.rows)
    assert [row.index_in_part for row in found] == [0, 1]
    assert [row.image_id for row in found] == part.rows["image_id"].to_pylist()
    assert [
        (row.parameters.prompt, row.parameters.seed, row.parameters.width) for row in found
    ] == [
        ("a red circle", 5, 32),
        ("zwei\nZeilen", 6, 32),
    ]


@pytest.mark.parametrize(
    "other",
    [{"width": 32}, {"height": 32}, {"steps": 3}, {"guidance": 4.0}, {"sampler": "ddim"}, {"loras": "style:0.8"},
     {"strength": 0.5}, {"source_image": "a" * 64}, {"control_image": "a" * 64}],
    ids=str,
)  # fmt: skip
def test_rows_of_another_shape_get_a_batch_of_their_own(other: dict[str, Any]) -> None:
    mixed = [image_row(place=0), image_row(place=1, **other), image_row(place=2)]
    assert list(group_by_shape(mixed)) == [[mixed[0]], [mixed[1]], [mixed[2]]]


def test_prompts_negative_prompts_and_seeds_share_a_batch() -> None:
    alike = [image_row("a"), image_row("b", 1, negative_prompt="c"), image_row("d", 2, seed=9)]
    assert list(group_by_shape(alike)) == [alike]


def test_other_pictures_share_a_batch() -> None:
    alike = [
        image_row(place=place, source_image=sign * 64, strength=0.5)
        for place, sign in enumerate("ab")
    ]
    assert list(group_by_shape(alike)) == [alike]


def test_rows_of_a_plan_without_columns_for_pictures_are_rows_without_pictures() -> None:
    named = {"image_id": ["a" * 32], "id": ["x"], "image_index": [0]}
    first = {"prompt": ["a"], "negative_prompt": [""], "seed": [1], "width": [8], "height": [8], "steps": [2],
             "guidance": [3.0], "sampler": ["default"]}  # fmt: skip
    (found,) = image_rows(pa.table(named | first))
    assert found.parameters == ImageParameters("a", "", 1, 8, 8, 2, 3.0, "default")


def test_a_short_batch_is_filled_with_its_last_row() -> None:
    short = [image_row(place=0), image_row(place=1)]
    assert pad_rows(short, 4) == [short[0], short[1], short[1], short[1]]


def test_a_full_batch_stays_as_it_is() -> None:
    full = [image_row(place=place) for place in range(4)]
    assert pad_rows(full, 4) == full
