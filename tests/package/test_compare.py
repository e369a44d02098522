"""The comparison of two checkouts: what it calls a difference, and what it lets pass."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.compare import difference, snapshot
from tests.compare.vocabulary import SettingNames, Vocabulary

PLAN = {"run_id": "demo", "counts": {"images": 2, "rejected_rows": 0}, "seconds": 1.5}
COLUMNS = {"image_id": ["a", "b"], "row": [0, 1]}


def write(
    folder: Path,
    run: str = "demo",
    plan: dict[str, object] | None = None,
    columns: dict[str, list[object]] | None = None,
    compression: str = "zstd",
) -> Path:
    """A snapshot of one scenario, a run of two images."""
    folder.mkdir()
    table = folder / "shard.parquet"
    pq.write_table(pa.table(columns or COLUMNS), table, compression=compression)
    files = {
        f"{run}/plan.json": json.dumps({**PLAN, **(plan or {})}).encode(),
        f"{run}/shards/00000.parquet": table.read_bytes(),
    }
    snapshot.write(folder / "demo.json", [], files, {})
    return folder


def compare(before: Path, after: Path, *ignored: str, rename: str = "") -> tuple[str, bool]:
    """What is said of two snapshots."""
    renames = [rename] if rename else []
    return difference.compare(before, after, Vocabulary.standard(renames, ignored))


def test_equal_snapshots_are_the_same_whatever_time_they_took(tmp_path: Path) -> None:
    before = write(tmp_path / "before")
    after = write(tmp_path / "after", plan={"seconds": 20.0})

    assert compare(before, after)[1]


def test_the_first_value_that_differs_is_named(tmp_path: Path) -> None:
    before = write(tmp_path / "before")
    after = write(tmp_path / "after", columns={"image_id": ["a", "c"], "row": [0, 1]})

    text, same = compare(before, after)

    assert not same
    assert "demo, ids (1), first: demo/shards/00000.parquet.table.rows[1].image_id" in text
    assert "before: 'b'\n    after:  'c'" in text


def test_a_renamed_key_is_a_difference_until_it_is_declared(tmp_path: Path) -> None:
    before = write(tmp_path / "before", plan={"looked_at": ["x"]})
    after = write(tmp_path / "after", plan={"excluded_runs": ["x"]})

    assert not compare(before, after)[1]
    assert compare(before, after, rename="looked_at=excluded_runs")[1]


@pytest.mark.parametrize("name", ["rejected_rows", "counts.rejected_rows", "counts", "plan"])
def test_a_key_or_a_whole_column_of_the_table_can_be_ignored(tmp_path: Path, name: str) -> None:
    before = write(tmp_path / "before")
    after = write(tmp_path / "after", plan={"counts": {"images": 2, "rejected_rows": 1}})

    assert not compare(before, after)[1]
    assert compare(before, after, name)[1]


def test_other_bytes_of_equal_content_are_told_apart_from_other_content(tmp_path: Path) -> None:
    before = write(tmp_path / "before")
    after = write(tmp_path / "after", compression="none")

    text, same = compare(before, after)

    assert not same
    assert "content" in text.splitlines()[1]
    assert compare(before, after, "file_bytes")[1]


def test_a_derived_run_id_may_change_and_is_reported(tmp_path: Path) -> None:
    before = write(tmp_path / "before", "demo-0123456789ab", plan={"run_id": "demo-0123456789ab"})
    after = write(tmp_path / "after", "demo-ba9876543210", plan={"run_id": "demo-ba9876543210"})

    text, same = compare(before, after)

    assert same
    assert text.splitlines()[1].endswith("changed")


def test_a_scenario_that_one_state_lacks_is_a_difference(tmp_path: Path) -> None:
    before = write(tmp_path / "before")
    (tmp_path / "after").mkdir()

    assert not compare(before, tmp_path / "after")[1]


def test_jobs_are_written_in_the_words_that_a_checkout_knows() -> None:
    renames = {"quantisation": "quantization"}
    settings = {"speed": {"quantisation": "none"}}

    old = SettingNames(frozenset({"speed", "quantisation"}), renames)
    new = SettingNames(frozenset({"speed", "quantization"}), renames)

    assert old.rename(settings) == settings
    assert new.rename(settings) == {"speed": {"quantization": "none"}}
