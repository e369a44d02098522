"""The format `parquet`: a part is one Parquet object with its images in it, and that is all."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps import parts, readback, tables
from imagekiln.steps.encode import Encoded
from imagekiln.steps.encodings import Encoding, is_lossless
from imagekiln.steps.errors import BadInput
from imagekiln.steps.readback import Checked, bad
from imagekiln.steps.shard import Part
from imagekiln.steps.storage import Store

BEFORE = (tables.IMAGE.name,)


@dataclass(frozen=True, slots=True)
class Packed:
    """A part's bytes, ready to be committed."""

    part: Part
    content: bytes

    def commit(self, store: Store) -> None:
        """Create the part, or find that another pod made it first. Raises BadInput where it holds other images."""
        parts.commit(store, self.part.key, self.part.rows, self.content)


@dataclass(frozen=True, slots=True)
class Parquet:
    """Parts in Parquet."""

    encoding: Encoding

    def pack(self, part: Part, images: Sequence[Encoded]) -> Packed:
        """The part with these images."""
        return Packed(part, parts.to_bytes(part.rows, images))

    def adopt(self, store: Store, part: Part) -> bool:  # noqa: ARG002  # as every format
        """Nothing: the images are the commit."""
        return False

    def places(self, part: Part) -> list[str]:
        """The part itself, for each image."""
        return [part.key] * part.rows.num_rows

    def check(self, store: Store, part: Part) -> Checked:
        """Read the part whole, and decode each of its images. Raises TryAgain where storage fails."""
        where, images = store.at(part.key), part.rows.num_rows
        try:
            content = store.read(part.key)
            offsets = parts.offsets(content, where)
            with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
                if len(offsets) != images or not readback.is_of(parquet, part.rows, BEFORE):
                    return bad(f"{where}: holds other images than were planned", images)
                rows = zip(readback.rows(parquet, BEFORE), offsets.to_pylist(), strict=True)
                exact = is_lossless(self.encoding)
                return sum((_image(row, content, offset, where, exact) for row, offset in rows), Checked(images))
        except BadInput as error:
            return bad(error, images)
        except tables.DAMAGED as error:
            return bad(tables.damaged(where, error), images)


def _image(row: readback.Row, part: bytes, offset: int | None, where: str, exact: bool) -> Checked:
    if row["status"] != "ok":
        return Checked()
    image, size = row["image"], row["size"]
    content = image["bytes"] if isinstance(image, dict) else b""
    if offset is None or not isinstance(size, int) or content != part[offset : offset + size]:
        return bad(f"{where}: image {row['image_id']} is not where the footer says")
    return readback.image(row, content, where, exact)
