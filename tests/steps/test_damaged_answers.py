"""Damage that one answer alone has, as of a network or a cache, is never that of a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest

from imagekiln.steps.aggregate.reconcile import reconcile_shard
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.dataset.dataset import open_dataset
from imagekiln.steps.export.plan import load_export_plan, read_file_rows
from imagekiln.steps.export.step import export
from imagekiln.steps.runs.account import Account
from imagekiln.steps.runs.finished_runs import find_finished_runs
from imagekiln.steps.runs.keys import REJECTED_KEY, manifest_key
from imagekiln.steps.runs.manifest import read_manifest, read_manifest_columns
from imagekiln.steps.runs.parts import Part, check_part
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.readback import read_image_bytes
from imagekiln.steps.runs.registry import RunEntry, append_run_entry
from imagekiln.steps.runs.shard import read_row_schema, read_shard, read_shard_rows
from imagekiln.steps.runs.tables import count_rows, read_bounds, read_columns, read_table
from imagekiln.steps.runs.terms import Terms, read_terms, write_terms
from imagekiln.steps.storage import local, open_store
from imagekiln.steps.storage.store import Store
from tests import runs
from tests.faults import manifests


@dataclass(frozen=True, slots=True)
class Place:
    """A finished run with everything that is read, an export of it, and its first part."""

    run: Store
    plan: Plan
    part: Part
    exported: Store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """What no test changes."""
    folder = tmp_path_factory.mktemp("damaged")
    run = runs.finished(folder / "out" / "run")
    plan = load_plan(run)
    write_terms(run, Terms(price_per_hour=2.0), plan.job)
    part = read_shard(run, plan, 0)[0]
    append_run_entry(str(folder / "out"), RunEntry("run", plan.job.name))
    exported = open_store(export(run.uri, str(folder / "export")).uri)
    return Place(run, plan, part, exported)


def images(place: Place) -> int:
    """The number of images in the run's first shard."""
    return place.plan.shards[0].images


READERS: dict[str, Callable[[Place], object]] = {
    "plan": lambda place: load_plan(place.run),
    "rows of a shard": lambda place: read_shard_rows(place.run, place.plan, 0),
    "columns of a shard": lambda place: read_row_schema(place.run, place.plan),
    "part": lambda place: check_part(place.run, place.part.key, place.part.rows),
    "outcomes": lambda place: reconcile_shard(place.run, place.plan, 0).manifest,
    "manifest": lambda place: read_manifest(place.run, 0, images(place)),
    "columns of a manifest": lambda place: read_manifest_columns(
        place.run, 0, images(place), ["status"]
    ),
    "summary": lambda place: load_summary(place.run),
    "table": lambda place: read_table(place.run, manifest_key(0)),
    "columns": lambda place: read_columns(place.run, manifest_key(0), ["image_id"]),
    "count of rows": lambda place: count_rows(place.run, REJECTED_KEY),
    "bounds": lambda place: read_bounds(place.run, manifest_key(0), "input_row"),
    "account": lambda place: Account(place.run).read(),
    "terms": lambda place: read_terms(place.run, place.plan.job),
    "finished runs": lambda place: find_finished_runs(place.run.uri.rpartition("/")[0]),
    "image": lambda place: read_image_bytes(place.run, manifests(place.run.uri)[0]),
    "images": lambda place: [
        batch.to_pylist() for batch in open_dataset(place.run.uri, ["image"]).to_batches()
    ],
    "plan of an export": lambda place: load_export_plan(place.exported),
    "rows of an export": lambda place: read_file_rows(
        place.exported, load_export_plan(place.exported), 0
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_what_one_answer_alone_damages_is_read_again(
    name: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = partial(READERS[name], place)
    undisturbed = read()
    open_file = local.open_file
    damaged: set[Path] = set()

    @contextmanager
    def cut_first(path: Path) -> Iterator[BinaryIO]:
        chosen = path
        if path not in damaged and path.exists():
            damaged.add(path)
            chosen = tmp_path / "cut"
            content = path.read_bytes()
            chosen.write_bytes(content[: min(100, len(content) // 2)])  # before any image
        with open_file(chosen) as file:
            yield file

    monkeypatch.setattr(local, "open_file", cut_first)
    assert read() == undisturbed
    assert damaged
