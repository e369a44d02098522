"""The index of a part whose images lie in objects of their own: read whole and compared with the plan."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps import parts, readback, tables
from imagekiln.steps.errors import BadInput
from imagekiln.steps.shard import Part


@dataclass(frozen=True, slots=True)
class Index:
    """What a part says of its images: the plan's columns, what became of each, and where its bytes begin."""

    told: pa.Table
    offsets: list[int | None]

    @property
    def rows(self) -> list[readback.Row]:
        """What is told of each image."""
        rows: list[readback.Row] = self.told.select(["image_id", "width", "height", *tables.OUTCOME.names]).to_pylist()
        return rows


def parse(content: bytes, part: Part, where: str) -> Index:
    """The index in these bytes. Raises BadInput where it is damaged, or not of this part's rows."""
    offsets = parts.offsets(content, where).to_pylist()
    try:
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
            if len(offsets) == part.rows.num_rows and readback.is_of(parquet, part.rows):
                return Index(parquet.read(use_threads=False).replace_schema_metadata(None), offsets)
    except tables.DAMAGED as error:
        raise tables.damaged(where, error) from error
    raise BadInput(f"{where}: holds other images than were planned. Choose another run_id or output.")
