"""The format `parquet`: a part is one Parquet object with its images in it, and that is all."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.output import Encoding, is_lossless
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.parts import Part, commit_part, parse_offsets, part_to_parquet
from imagekiln.steps.runs.readback import (
    CheckResult,
    PartRow,
    check_failure,
    check_image_bytes,
    iter_part_rows,
    matches_rows,
)
from imagekiln.steps.runs.tables import DAMAGE_ERRORS, IMAGE_FIELD, damage_error
from imagekiln.steps.storage.store import Store

LEADING_COLUMNS = (IMAGE_FIELD.name,)


@dataclass(frozen=True, slots=True)
class PackedParquet:
    """A part's bytes, ready to be committed."""

    part: Part
    content: bytes

    def commit(self, store: Store) -> None:
        """Create the part, or find that another pod made it first. Raises BadInput where it holds other images."""
        commit_part(store, self.part.key, self.part.rows, self.content)


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Parts in Parquet."""

    encoding: Encoding

    def pack(self, part: Part, images: Sequence[EncodedImage]) -> PackedParquet:
        """The part with these images."""
        return PackedParquet(part, part_to_parquet(part.rows, images))

    def recover(self, store: Store, part: Part) -> bool:  # noqa: ARG002  # as every format
        """Nothing: the images are the commit."""
        return False

    def object_keys(self, part: Part) -> list[str]:
        """The part itself, for each image."""
        return [part.key] * part.rows.num_rows

    def check(self, store: Store, part: Part) -> CheckResult:
        """Read the part whole, and decode each of its images. Raises TryAgain where storage fails."""
        where, images = store.uri_of(part.key), part.rows.num_rows
        try:
            content = store.read(part.key)
            offsets = parse_offsets(content, where)
            with pq.ParquetFile(
                pa.BufferReader(content), page_checksum_verification=True
            ) as parquet:
                if len(offsets) != images or not matches_rows(parquet, part.rows, LEADING_COLUMNS):
                    return check_failure(f"{where}: holds other images than were planned", images)
                rows = zip(
                    iter_part_rows(parquet, LEADING_COLUMNS), offsets.to_pylist(), strict=True
                )
                exact = is_lossless(self.encoding)
                return sum(
                    (_check_image(row, content, offset, where, exact) for row, offset in rows),
                    CheckResult(images),
                )
        except BadInput as error:
            return check_failure(error, images)
        except DAMAGE_ERRORS as error:
            return check_failure(damage_error(where, error), images)


def _check_image(
    row: PartRow, part: bytes, offset: int | None, where: str, exact: bool
) -> CheckResult:
    if row["status"] != "ok":
        return CheckResult()
    image, size = row["image"], row["size"]
    content = image["bytes"] if isinstance(image, dict) else b""
    if offset is None or not isinstance(size, int) or content != part[offset : offset + size]:
        return check_failure(f"{where}: image {row['image_id']} is not where the footer says")
    return check_image_bytes(row, content, where, exact)
