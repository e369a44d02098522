"""Counts a run anew from what its parts hold, and compares what was derived from them with that.

That is whether lists of rows, summary, card, index of images and report are whole, and agree.
"""

import json
from collections.abc import Callable
from functools import partial
from threading import Lock

import pyarrow as pa

from imagekiln.steps.aggregate.image_counts import ImageCounts, count_images
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.runs.image_id_index import (
    RunImageIds,
    find_index_difference,
)
from imagekiln.steps.runs.integrity import CheckResult, run_check
from imagekiln.steps.runs.keys import (
    CARD_KEY,
    DUPLICATES_KEY,
    EMPTY_DATASET_KEY,
    REJECTED_KEY,
    REPORT_KEY,
    SUMMARY_KEY,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.tables import count_rows
from imagekiln.steps.storage.store import Store


class Recount:
    """The images of a run, counted shard by shard in any order, by any thread."""

    def __init__(self, plan: Plan, rounds: int | None, image_ids: RunImageIds) -> None:
        """Begin without a shard, and with `image_ids` that are empty.

        `rounds` is the number of rounds that the summary must have; None where it may lack some.
        """
        self._plan = plan
        self._rounds = rounds
        self._counts = ImageCounts()
        self._image_ids = image_ids
        self._shards = 0
        self._lock = Lock()

    def add(self, manifest: pa.Table) -> None:
        """Count a shard by its manifest, which agrees with its parts. Raises TryAgain."""
        counts = count_images(manifest)
        with self._lock:
            self._counts += counts
            self._image_ids.add(manifest)
            self._shards += 1

    def check(self, store: Store) -> CheckResult:
        """The errors of what was derived. Raises TryAgain."""
        counts = self._plan.counts
        checks: list[Callable[[], str | None]] = [
            partial(_check_row_list, store, REJECTED_KEY, counts.rejected_rows),
            partial(_check_row_list, store, DUPLICATES_KEY, counts.duplicate_images),
            partial(self._check_summary, store),
            partial(_check_card, store),
            partial(self._check_empty_dataset, store),
            partial(self._check_index, store),
            partial(_check_report, store),
        ]
        return sum(map(run_check, checks), CheckResult())

    @property
    def _is_complete(self) -> bool:
        """Whether every shard was counted."""
        return self._shards == len(self._plan.shards)

    def _check_summary(self, store: Store) -> str | None:
        load_summary(store)
        where = store.uri_of(SUMMARY_KEY)
        summary = json.loads(store.read(SUMMARY_KEY))
        other_plan = _differing(summary, self._planned_fields())
        if other_plan:
            return f"{where}: is of another plan ({other_plan})"
        other_counts = _differing(summary, self._counted_fields()) if self._is_complete else ""
        if other_counts:
            return f"{where}: counts other images than the manifest ({other_counts})"
        return None

    def _check_empty_dataset(self, store: Store) -> str | None:
        """Only a run without images has it."""
        if not self._is_complete or self._counts.statuses["ok"]:
            return None
        rows = count_rows(store, EMPTY_DATASET_KEY)
        return f"{store.uri_of(EMPTY_DATASET_KEY)}: has {rows} rows and not 0" if rows else None

    def _check_index(self, store: Store) -> str | None:
        return find_index_difference(store, self._image_ids) if self._is_complete else None

    def _planned_fields(self) -> dict[str, object]:
        counts = self._plan.counts
        fields: dict[str, object] = {
            "run_id": self._plan.run_id,
            "rows": self._plan.input.rows,
            "rejected_rows": counts.rejected_rows,
            "duplicate_images": counts.duplicate_images,
            "truncated_prompts": counts.truncated_prompts,
            "images": counts.images,
            "existing_images": counts.existing_images,
        }
        if self._rounds is not None:
            fields["rounds"] = self._rounds
        return fields

    def _counted_fields(self) -> dict[str, object]:
        counts = self._counts
        gates = self._plan.job.marking_gates
        return {
            "statuses": dict(counts.statuses),
            "bytes": counts.bytes,
            "missing_parts": [],  # of a finished run
            "missing_parts_count": 0,
            "marks": {gate: counts.marks[gate] for gate in gates},
            "permanent_failures": counts.permanent_failures,
        }


def _differing(summary: dict[str, object], expected: dict[str, object]) -> str:
    """The names of fields with other values."""
    return ", ".join(name for name, value in expected.items() if summary[name] != value)


def _check_row_list(store: Store, key: str, expected: int) -> str | None:
    """Whether a list of input rows has so many."""
    count = count_rows(store, key)
    if count == expected:
        return None
    return f"{store.uri_of(key)}: has {count} rows and not {expected}, as planned"


def _check_card(store: Store) -> str | None:
    if store.read(CARD_KEY).startswith(b"---\n"):
        return None
    return f"{store.uri_of(CARD_KEY)}: is not a dataset card"


def _check_report(store: Store) -> str | None:
    if store.read(REPORT_KEY).rstrip().endswith(b"</html>"):
        return None
    return f"{store.uri_of(REPORT_KEY)}: is not a complete page"
