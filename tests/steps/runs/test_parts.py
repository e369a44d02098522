"""Parts: how they are committed, what reading one gives, and what is refused."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.part_file import part_to_parquet
from imagekiln.steps.runs.parts import (
    commit_part,
    read_outcomes,
)
from imagekiln.steps.storage.store import Store
from tests.runs import encoded, not_ok

IMAGES = [encoded(0), not_ok(1), encoded(2), encoded(3)]
KEY = "images/00000-0000.parquet"


def test_the_first_writer_wins_where_both_made_the_same_images(
    rows: pa.Table, store: Store
) -> None:
    first = part_to_parquet(rows, IMAGES)
    second = part_to_parquet(rows, [not_ok(index) for index in range(4)])
    assert first != second
    commit_part(store, KEY, rows, first)
    commit_part(store, KEY, rows, second)
    assert store.read(KEY) == first


def test_a_part_with_the_images_of_another_plan_is_refused(
    planned_rows: list[pa.Table], store: Store
) -> None:
    rows, other = planned_rows
    commit_part(store, KEY, other, part_to_parquet(other, IMAGES))
    with pytest.raises(
        BadInput,
        match=r"00000-0000.parquet: holds the images of another plan. Choose another run_id",
    ):
        commit_part(store, KEY, rows, part_to_parquet(rows, IMAGES))


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda content: content[:-1],
        lambda _: b"no Parquet at all" * 100,
    ],
    ids=["empty", "a byte short", "something else"],
)
def test_a_part_that_is_not_whole_is_called_damaged(
    damage: Callable[[bytes], bytes], rows: pa.Table, store: Store
) -> None:
    store.replace(KEY, damage(part_to_parquet(rows, IMAGES)))
    with pytest.raises(
        BadInput, match=r"00000-0000.parquet: is damaged \(.*\). Restore or delete it"
    ):
        read_outcomes(store, KEY, ["image_id"])
