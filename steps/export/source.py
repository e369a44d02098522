"""Where the images of an export lie."""

from dataclasses import dataclass

import pyarrow as pa

from imagekiln.steps.export.plan import ExportPlan
from imagekiln.steps.runs.forgotten import read_forgotten_ids
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

RUN_READERS = 16


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Where the images of an export come from: the folder of the output, or of its only run."""

    store: Store
    plan: ExportPlan

    def locate(self, rows: pa.Table) -> pa.Table:
        """The rows, with the keys of their objects in the source. Raises BadInput."""
        parts = rows["part"].to_pylist()
        keys = list(map(self._key_of, parts))
        index = rows.schema.get_field_index("part")
        return rows.set_column(index, "part", pa.array(keys))

    def read_forgotten(self) -> dict[str, frozenset[str]]:
        """The ids of the images that were taken down from each run of the plan, by its id."""
        run_ids = [run.run_id for run in self.plan.runs]

        def read(index: int) -> frozenset[str]:
            folder = open_store(self._run_uri(run_ids[index]))
            return frozenset(read_forgotten_ids(folder).to_pylist())

        ids = map_ordered(read, len(run_ids), RUN_READERS)
        return dict(zip(run_ids, ids, strict=True))

    def suffixes(self, rows: pa.Table) -> list[str]:
        """The suffix of each image's file."""
        suffixes = {run.run_id: run.suffix for run in self.plan.runs}
        parts = rows["part"].to_pylist()
        return [suffixes[_run_of(part)] for part in parts]

    def _key_of(self, part: str) -> str:
        if not self.plan.is_run:
            return part
        _, _, key = part.partition("/")
        return key

    def _run_uri(self, run_id: str) -> str:
        uri = self.store.uri
        return uri if self.plan.is_run else f"{uri}/{run_id}"


def _run_of(part: str) -> str:
    """The id of the run of a planned row, from its part."""
    run_id, _, _ = part.partition("/")
    return run_id
