"""Where the images of an export lie: by its plan, and by the manifests once they have moved."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.dataset.runs import open_source, read_run_manifest
from imagekiln.steps.export.plan import ExportPlan
from imagekiln.steps.runs.forgotten import read_forgotten_ids
from imagekiln.steps.runs.keys import parse_part_key, round_folder
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.tables import LOCATION_SCHEMA
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

RUN_READERS = 16
PLACE_COLUMNS = ["image_id", "sha256", *LOCATION_SCHEMA.names]


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

    def relocate(self, rows: pa.Table) -> pa.Table:
        """The rows, with the places that the manifests now name for the same files.

        They move where other images of their parts are taken down. Raises Incomplete while that is
        done, Missing, BadInput, TryAgain.
        """
        places: dict[tuple[str, ...], tuple[str, int]] = {}
        for run_id, shard in sorted(self._find_shards(rows)):
            for row in self._read_places(run_id, shard):
                name = (run_id, row["image_id"], row["sha256"])
                places[name] = (f"{run_id}/{row['part']}", row["byte_offset"])

        parts, offsets = [], []
        for row in rows.select(PLACE_COLUMNS).to_pylist():
            name = (_run_of(row["part"]), row["image_id"], row["sha256"])
            part, offset = places.get(name, (row["part"], row["byte_offset"]))
            parts.append(part)
            offsets.append(offset)
        for field, values in zip(LOCATION_SCHEMA, (parts, offsets), strict=True):
            index = rows.schema.get_field_index(field.name)
            rows = rows.set_column(index, field, pa.array(values, field.type))
        return rows

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

    def _read_places(self, run_id: str, shard: int) -> list[dict[str, Any]]:
        """Where the files of a shard's images are by its manifest; none of a shard that is gone."""
        source = open_source(self._run_uri(run_id))
        if shard >= len(source.shard_images):
            return []
        manifest = read_run_manifest(source, shard)
        has_file = pc.is_valid(manifest["sha256"])
        places: list[dict[str, Any]] = manifest.filter(has_file).select(PLACE_COLUMNS).to_pylist()
        return places

    def _find_shards(self, rows: pa.Table) -> set[tuple[str, int]]:
        """The runs of these rows, with the numbers of the shards whose manifests have them."""
        shards: set[tuple[str, int]] = set()
        for part in rows["part"].unique().to_pylist():
            run_id, _, key = part.partition("/")
            place = parse_part_key(key)
            if place is None:
                continue
            round_number, shard = place
            sources = [(shard, shard)]
            if round_number:
                folder = open_store(f"{self._run_uri(run_id)}/{round_folder(round_number)}")
                sources = [*load_plan(folder).source_shards[shard : shard + 1]]
            for first, last in sources:
                shards.update((run_id, number) for number in range(first, last + 1))
        return shards


def _run_of(part: str) -> str:
    """The id of the run of a planned row, from its part."""
    run_id, _, _ = part.partition("/")
    return run_id
