"""Parts against the plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.reconcile import reconcile_shard
from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import planned_shard_key, read_shard_rows
from imagekiln.steps.runs.tables import (
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    ORIGIN_SCHEMA,
    OUTCOME_SCHEMA,
    to_parquet,
)
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from imagekiln.steps.storage.store import Store
from tests.runs import PROMPTS, encoded, fill, not_ok, planned

FOOTER_BYTES = 2**16  # the end of a file, which Parquet readers take in one piece
KEYS = [part_key(0, number) for number in range(3)]


@pytest.fixture
def planned_run(tmp_path: Path) -> PlanResult:
    """A planned run of one shard with parts of 4, 4 and 2 images."""
    return planned(tmp_path, str(tmp_path / "out"), PROMPTS[:10], shard={"images": 100})


class Reading(LocalStore):
    """A disk that counts the bytes read from it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bytes = 0

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        with super().open(key) as file:
            yield _Counted(file, self)  # type: ignore[misc]  # all that is asked of a file


class _Counted:
    def __init__(self, file: BinaryIO, store: Reading) -> None:
        self._file, self._store = file, store
        self.seek, self.tell, self.close = file.seek, file.tell, file.close
        self.fileno = file.fileno

    @property
    def closed(self) -> bool:
        return self._file.closed

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._store.bytes += len(content)
        return content


def test_every_planned_image_has_a_row_with_what_became_of_it_in_the_plan_s_order(
    planned_run: PlanResult,
) -> None:
    fill(planned_run, {5: not_ok(5)})
    store = open_store(planned_run.uri)
    result = reconcile_shard(store, planned_run.plan, 0)
    rows = read_shard_rows(store, planned_run.plan, 0)
    assert result.missing_parts == ()
    tail = [*ORIGIN_SCHEMA, *OUTCOME_SCHEMA, *LOCATION_SCHEMA, *NEAR_DUPLICATE_SCHEMA]
    names = [field.name for field in tail]
    assert result.manifest.column_names == [*rows.column_names, *names]
    assert result.manifest.select(rows.column_names).equals(rows)
    assert result.manifest["status"].to_pylist() == ["ok"] * 5 + ["failed"] + ["ok"] * 4
    assert result.manifest["error"].to_pylist()[5] == "RuntimeError: a fault"
    assert result.manifest["part"].to_pylist() == [KEYS[0]] * 4 + [KEYS[1]] * 4 + [KEYS[2]] * 2


def test_an_image_is_found_by_the_manifest_s_part_offset_and_size_alone(
    planned_run: PlanResult,
) -> None:
    fill(planned_run, {5: not_ok(5)})
    store = open_store(planned_run.uri)
    rows = reconcile_shard(store, planned_run.plan, 0).manifest.to_pylist()
    assert rows[5]["byte_offset"] is rows[5]["byte_size"] is None
    for place, row in enumerate(rows):
        if place != 5:
            content = store.read(row["part"])[
                row["byte_offset"] : row["byte_offset"] + row["byte_size"]
            ]
            assert content == encoded(place % 4).content


def _swapped(store: Store, _: Plan) -> None:
    store.replace(KEYS[0], store.read(KEYS[1]))


def _cut(store: Store, _: Plan) -> None:
    store.replace(KEYS[0], store.read(KEYS[0])[:-10])


def _other_list(store: Store, plan: Plan) -> None:
    store.replace(planned_shard_key(plan, 0), to_parquet(pa.table({"image_id": ["a"]})))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_swapped, "00000-0000.parquet: holds the images of another plan"),
        (_cut, "00000-0000.parquet: is damaged"),
        (_other_list, "shards/00000-[0-9a-f]*.parquet: is not what was planned"),
    ],
)
def test_what_is_not_of_this_plan_is_refused(
    damage: object, sentence: str, planned_run: PlanResult
) -> None:
    fill(planned_run)
    store = open_store(planned_run.uri)
    damage(store, planned_run.plan)  # type: ignore[operator]  # one of the functions above
    with pytest.raises(BadInput, match=sentence):
        reconcile_shard(store, planned_run.plan, 0)
