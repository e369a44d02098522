from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.plan.image_sql import model_key
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import ImageParameters
from imagekiln.steps.runs.keys import duplicates_key
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.storage import open_store
from tests.identity import compute_image_id
from tests.jobs import image_rows, plan, rejected
from tests.texts import HOSTILE, chance

Row = dict[str, object]


def _duplicates(planned: PlanResult) -> list[Row]:
    key = duplicates_key(planned.plan.duplicates)
    rows: list[Row] = read_table(open_store(planned.uri), key).to_pylist()
    return rows


def _random_columns(count: int, seed: int) -> dict[str, object]:
    rng = chance(seed)
    return {
        "prompt": [f"{rng.choice(HOSTILE)} {rng.randrange(20)}" for _ in range(count)],
        "id": [rng.choice([None, f"id {n}"]) for n in range(count)],
        "seed": pa.array(
            [rng.choice([None, None, rng.randrange(100)]) for _ in range(count)], pa.int64()
        ),
        "width": pa.array([rng.choice([None, 64, 72, 128]) for _ in range(count)], pa.int32()),
        "steps": pa.array([rng.choice([None, 2, 30]) for _ in range(count)], pa.int64()),
        "guidance": [rng.choice([None, 0.1, 7.5]) for _ in range(count)],
        "images": pa.array([rng.choice([None, 1, 3]) for _ in range(count)], pa.int64()),
    }


def test_every_image_has_the_id_of_its_own_settings(tmp_path: Path) -> None:
    planned = plan(tmp_path, _random_columns(500, seed=1))
    key = model_key(planned.plan.model.digest, planned.plan.job.model.dtype)
    rows = image_rows(planned).to_pylist()
    assert len(rows) > 500
    for row in rows:
        assert row["image_id"] == compute_image_id(
            key, ImageParameters(*(row[name] for name in ImageParameters.__slots__))
        )


def test_row_with_an_id_keeps_its_seed_when_its_text_changes(tmp_path: Path) -> None:
    before = plan(tmp_path / "1", {"prompt": ["a"], "id": ["x"]})
    after = plan(tmp_path / "2", {"prompt": ["b"], "id": ["x"]})
    assert image_rows(before)["seed"] == image_rows(after)["seed"]
    assert image_rows(before)["image_id"] != image_rows(after)["image_id"]


def test_row_without_an_id_has_its_seed_from_its_text_and_settings(tmp_path: Path) -> None:
    columns = {
        "prompt": ["a", "b", "a", "a"],
        "steps": [2, 2, 3, 2],
        "negative_prompt": [None, None, None, "x"],
    }
    assert len({*image_rows(plan(tmp_path, columns))["seed"].to_pylist()}) == 4


def test_rows_added_or_moved_change_no_other_image(tmp_path: Path) -> None:
    columns = {
        "prompt": ["a", "b", "c"],
        "id": [None, "x", None],
        "seed": [None, None, 5],
        "images": [2, 2, 2],
    }
    before = plan(tmp_path / "1", columns)
    table = pa.table(
        {
            **columns,
            "id": pa.array(columns["id"], pa.string()),
            "seed": pa.array(columns["seed"], pa.int64()),
        }
    )
    more = pa.table(
        {
            "prompt": ["z", "y"],
            "id": ["z", None],
            "seed": pa.array([None, 5], pa.int64()),
            "images": [1, 9],
        }
    )
    after = plan(tmp_path / "2", pa.concat_tables([more, table.take([2, 0, 1])]))
    expected = {*image_rows(before)["image_id"].to_pylist()}
    assert len(expected) == 6
    assert expected < {*image_rows(after)["image_id"].to_pylist()}


def test_same_image_is_made_once_under_its_first_row(tmp_path: Path) -> None:
    columns = {
        "prompt": ["b", "a", "a", "b", "a"],
        "seed": [9, 1, 2, 9, 1],
        "images": [1, 3, 1, 1, 1],
    }
    planned = plan(tmp_path, columns)
    rows = image_rows(planned).to_pylist()
    assert [(row["prompt"], row["seed"], row["input_row"]) for row in rows] == [
        ("b", 9, 0),
        ("a", 1, 1),
        ("a", 2, 1),
        ("a", 3, 1),
    ]
    ids = {(row["prompt"], row["seed"]): row["image_id"] for row in rows}
    assert _duplicates(planned) == [
        {"input_row": 2, "image_index": 0, "image_id": ids["a", 2], "first_row": 1},
        {"input_row": 3, "image_index": 0, "image_id": ids["b", 9], "first_row": 0},
        {"input_row": 4, "image_index": 0, "image_id": ids["a", 1], "first_row": 1},
    ]
    assert (planned.plan.counts.images, planned.plan.counts.duplicate_images) == (4, 3)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "b"},
        {"seed": 2},
        {"steps": 3},
        {"images": 2},
        {"negative_prompt": "x"},
        {"width": 72},
    ],
    ids=str,
)
def test_same_id_with_other_content_is_refused_after_the_first(tmp_path: Path, change: Row) -> None:
    plain: Row = {
        "prompt": "a",
        "id": "x",
        "seed": 1,
        "steps": 2,
        "images": 1,
        "negative_prompt": "",
        "width": 64,
    }
    rows = [plain, {**plain, "id": "y"}, {**plain, **change}, plain]
    planned = plan(tmp_path, pa.Table.from_pylist(rows), limits={"rejected_share": 1})
    assert [(row["input_row"], row["column_name"], row["reason"]) for row in rejected(planned)] == [
        (2, "id", "repeats the id of an earlier row with other content")
    ]
    assert {row["input_row"] for row in image_rows(planned).to_pylist()} <= {0, 1}


def test_refused_row_does_not_take_its_id_from_a_later_one(tmp_path: Path) -> None:
    columns = {"prompt": [None, "a"], "id": ["x", "x"]}
    planned = plan(tmp_path, columns, limits={"rejected_share": 1})
    assert [row["column_name"] for row in rejected(planned)] == ["prompt"]
    assert image_rows(planned)["id"].to_pylist() == ["x"]


def test_images_of_one_shape_lie_together_in_the_order_of_the_input(tmp_path: Path) -> None:
    columns = {
        "prompt": [f"p{n}" for n in range(8)],
        "steps": [3, 2, 3, 4, 2, 3, 2, 4],
        "images": [1, 2, 1, 1, 1, 1, 1, 1],
    }
    rows = image_rows(plan(tmp_path, columns)).to_pylist()
    assert [(row["steps"], row["input_row"], row["image_index"]) for row in rows] == [
        (3, 0, 0),
        (3, 2, 0),
        (3, 5, 0),
        (2, 1, 0),
        (2, 1, 1),
        (2, 4, 0),
        (2, 6, 0),
        (4, 3, 0),
        (4, 7, 0),
    ]


def test_every_image_is_accounted_for_in_a_random_input(tmp_path: Path) -> None:
    columns = _random_columns(3000, seed=2)
    planned = plan(tmp_path, columns, limits={"rejected_share": 1})
    refused = {row["input_row"] for row in rejected(planned)}
    images = columns["images"]
    assert isinstance(images, pa.Array)
    requested = sum(
        count or 1 for row, count in enumerate(images.to_pylist()) if row not in refused
    )
    rows, duplicates = image_rows(planned).to_pylist(), _duplicates(planned)
    assert len(duplicates) > 100
    assert len(rows) + len(duplicates) == requested
    first_rows = {row["image_id"]: row["input_row"] for row in rows}
    assert len(first_rows) == len(rows)
    for row in duplicates:
        assert first_rows[row["image_id"]] == row["first_row"]
        assert int(str(row["first_row"])) <= int(str(row["input_row"]))
