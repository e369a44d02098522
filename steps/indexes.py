"""The index of a part whose images lie in objects of their own: read whole and compared with the plan."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps import parts, readback, tables
from imagekiln.steps.errors import BadInput
from imagekiln.steps.shard import Part


@dataclass(frozen=True, slots=True)
class PartIndex:
    """What a part says of its images: the plan's columns, what became of each, and where its bytes begin."""

    table: pa.Table
    offsets: list[int | None]

    @property
    def rows(self) -> list[readback.PartRow]:
        """What is told of each image."""
        rows: list[readback.PartRow] = self.table.select(
            ["image_id", "width", "height", *tables.OUTCOME_SCHEMA.names]
        ).to_pylist()
        return rows


def parse_part_index(content: bytes, part: Part, where: str) -> PartIndex:
    """The index in these bytes. Raises BadInput where it is damaged, or not of this part's rows."""
    offsets = parts.parse_offsets(content, where).to_pylist()
    try:
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
            if len(offsets) == part.rows.num_rows and readback.matches_rows(parquet, part.rows):
                return PartIndex(parquet.read(use_threads=False).replace_schema_metadata(None), offsets)
    except tables.DAMAGE_ERRORS as error:
        raise tables.damage_error(where, error) from error
    raise BadInput(f"{where}: holds other images than were planned. Choose another run_id or output.")
