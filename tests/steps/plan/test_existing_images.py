"""The images that earlier runs hold, found by id."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.catalog import create_existing_table, successful_runs
from imagekiln.steps.runs import image_id_index
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import Database
from tests import jobs
from tests.image_ids import hexadecimal, write
from tests.registry import entry, succeed


def existing_numbers(folder: Path, new_ids: Sequence[str], runs: Sequence[str]) -> list[int]:
    """The numbers of the wanted ids that the runs hold; an id's number is ten times its place."""
    folder.mkdir()
    database = Database(folder)
    values = (
        ", ".join(f"('{text}', {10 * place})" for place, text in enumerate(new_ids))
        or "(NULL, NULL)"
    )
    database.execute(
        "CREATE TABLE unique_images AS SELECT CAST(image_id AS UUID) AS image_id, number "
        f"FROM (VALUES {values}) AS t(image_id, number) WHERE number IS NOT NULL"
    )
    create_existing_table(database, runs)
    numbers = database.fetch_table("SELECT number FROM existing ORDER BY number")[
        "number"
    ].to_pylist()
    left = database.fetch_table("SELECT count(*) AS images FROM planned_images")[
        "images"
    ].to_pylist()
    database.close()
    assert left == [len(new_ids) - len(numbers)]
    return [int(number) for number in numbers]


@pytest.mark.parametrize("chunk", [10_000, 70])
def test_what_is_found_is_what_a_set_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(image_id_index, "IDS_PER_CHUNK", chunk)
    ids, rng, held_ids = hexadecimal(600), np.random.default_rng(7), set[str]()
    for number, count in enumerate((200, 0, 1, 90)):
        chosen = [ids[place] for place in rng.choice(len(ids), count, replace=False)]
        write(
            open_store(str(tmp_path / f"run-{number}")),
            [*chosen, *hexadecimal(50, seed=number)[6:]],
        )
        held_ids |= set(chosen)
    new_ids = [ids[place] for place in rng.permutation(500)]
    runs = [str(tmp_path / f"run-{number}") for number in range(4)]
    numbers = existing_numbers(tmp_path / "scratch", new_ids, runs)
    assert numbers == [10 * place for place, text in enumerate(new_ids) if text in held_ids]
    assert 0 < len(numbers) < len(new_ids)


def test_run_whose_index_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="run: has no image index"):
        existing_numbers(tmp_path / "scratch", hexadecimal(3), [str(tmp_path / "run")])


def test_earlier_runs_are_those_that_succeeded_but_not_the_run_itself(tmp_path: Path) -> None:
    job = jobs.job(tmp_path, skip_existing=True)
    succeed(job.output, entry(0), entry(1))
    assert successful_runs(job) == ("nightly-0", "nightly-1")
    assert successful_runs(job, "nightly-1") == ("nightly-0",)
