"""Counts a run anew from what its parts hold, and compares its summary and its index with that."""

import json
from threading import Lock

import pyarrow as pa

from imagekiln.steps.aggregate.image_counts import ImageCounts, count_images
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.runs.image_id_index import (
    RunImageIds,
    find_index_difference,
    iter_index_chunks,
)
from imagekiln.steps.runs.keys import SUMMARY_KEY
from imagekiln.steps.runs.plan import Plan
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

    @property
    def is_complete(self) -> bool:
        """Whether every shard was counted."""
        return self._shards == len(self._plan.shards)

    @property
    def is_empty(self) -> bool:
        """Whether every shard was counted, and no image is ok."""
        return self.is_complete and not self._counts.statuses["ok"]

    def add(self, manifest: pa.Table) -> None:
        """Count a shard by its manifest, which agrees with its parts. Raises TryAgain."""
        counts = count_images(manifest)
        with self._lock:
            self._counts += counts
            self._image_ids.add(manifest)
            self._shards += 1

    def check_summary(self, store: Store) -> str | None:
        """What is wrong with the run's summary, in a sentence. Raises BadInput."""
        load_summary(store)
        where = store.uri_of(SUMMARY_KEY)
        summary = json.loads(store.read(SUMMARY_KEY))
        other_plan = _differing(summary, self._planned_fields())
        if other_plan:
            return f"{where}: is of another plan ({other_plan})"
        other_counts = _differing(summary, self._counted_fields()) if self.is_complete else ""
        if other_counts:
            return f"{where}: counts other images than the manifest ({other_counts})"
        return None

    def check_index(self, store: Store) -> str | None:
        """What is wrong with the run's index of images, in a sentence. Raises BadInput."""
        if self.is_complete:
            return find_index_difference(store, self._image_ids)
        for _ in iter_index_chunks(store):  # each is read: it may be damaged
            pass
        return None

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
