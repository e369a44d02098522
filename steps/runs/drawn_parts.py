"""Parts whose images are drawn and chosen, and wait for their passes: an object for each.

It has the pixels as they are, and whatever else is known of each image, with a hash of all of it.
The first writer wins, as with parts. Once the part itself is committed, it is removed.
"""

import hashlib
import io
import json
import math
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import Missing, StorageRefused, newer_version_error
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.runs.image import (
    FORGOTTEN_STATUS,
    OUTSCORED_STATUS,
    DrawnImage,
    ImageRow,
    ScoreValue,
    image_rows,
)
from imagekiln.steps.runs.keys import drawn_key
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.tables import damage_error, parse_parquet
from imagekiln.steps.storage.store import Store

DRAWN_VERSION = 1
VERSION_METADATA = "imagekiln.drawn_version"
HASH_METADATA = "imagekiln.drawn_sha256"
SCORE_TYPE = pa.struct(
    [("name", pa.string()), ("value", pa.float64()), ("reason", pa.string())],
)
DRAWN_SCHEMA = pa.schema(
    [
        ("image_id", pa.string()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("candidate_rank", pa.int32()),
        ("scores", pa.list_(SCORE_TYPE)),
        ("pixels", pa.binary()),
    ]
)
STATUSES = ("ok", "blank", "filtered", "failed", OUTSCORED_STATUS, FORGOTTEN_STATUS)
# Fast, and about what higher levels make of pixels.
OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "write_statistics": False,
    "write_page_checksum": True,
}
ROW_GROUP_IMAGES = 8
CHECK_THREADS = 8
MAX_OVERHEAD_BYTES = 2**20  # of an object, beside its images
MAX_TEXT_BYTES = 2**16  # of what is known of an image beside its pixels


@dataclass(frozen=True, slots=True)
class PackedDrawnPart:
    """The drawn images of a part, ready to be stored."""

    part: Part
    content: bytes

    def commit(self, store: Store) -> bool:
        """Create the object; False where another process already did.

        Where others have run the passes meanwhile, and removed the object, nobody needs it again.
        """
        is_first = store.create(drawn_key(self.part.key), self.content)
        if store.exists(self.part.key):
            with suppress(StorageRefused):  # `gc` finds it
                remove_drawn_part(store, self.part)
        return is_first


def pack_drawn_part(part: Part, images: Sequence[DrawnImage]) -> PackedDrawnPart:
    """Pack the drawn images of a part, which are in the order of its rows."""
    digest = hashlib.sha256()
    sink = io.BytesIO()
    image_ids = part.rows["image_id"].to_pylist()
    pairs = list(zip(image_ids, images, strict=True))
    with pq.ParquetWriter(sink, DRAWN_SCHEMA, **OPTIONS) as writer:
        for start in range(0, len(pairs), ROW_GROUP_IMAGES):
            group = pairs[start : start + ROW_GROUP_IMAGES]
            rows = [_to_values(image_id, image) for image_id, image in group]
            for values in rows:
                _update(digest, values)
            table = pa.Table.from_pylist(rows, schema=DRAWN_SCHEMA)
            writer.write_table(table)

        metadata = {
            VERSION_METADATA: str(DRAWN_VERSION),
            HASH_METADATA: digest.hexdigest(),
        }
        writer.add_key_value_metadata(metadata)
    return PackedDrawnPart(part, sink.getvalue())


def is_drawn(store: Store, part: Part) -> bool:
    """Whether the images of a part wait for their passes."""
    return store.exists(drawn_key(part.key))


def find_drawn_parts(store: Store, parts: Sequence[Part]) -> list[Part]:
    """Those of the parts whose images wait for their passes."""
    with ThreadPoolExecutor(CHECK_THREADS) as pool:
        are_drawn = list(pool.map(partial(is_drawn, store), parts))
    return list(compress(parts, are_drawn))


def remove_drawn_part(store: Store, part: Part) -> None:
    """Remove the drawn images of a part, if they are there."""
    with suppress(Missing):
        store.remove(drawn_key(part.key))


def read_drawn_part(store: Store, part: Part, scores: Collection[str]) -> list[DrawnImage] | None:
    """The drawn images of a part, of a job with these scores; None where they are not there.

    Raises BadInput where the object is damaged, or holds other images than were planned.
    """
    key = drawn_key(part.key)
    where = store.uri_of(key)
    rows = image_rows(part.rows)
    most = MAX_OVERHEAD_BYTES
    for row in rows:
        most += _pixel_bytes(row) + MAX_TEXT_BYTES
    try:
        content = store.read_prefix(key, most + 1)
    except Missing:
        return None
    if len(content) > most:
        raise damage_error(where, ValueError("it is larger than the images of the part"))
    return _parse(content, where, rows, frozenset(scores))


def _parse(
    content: bytes, where: str, rows: Sequence[ImageRow], scores: Collection[str]
) -> list[DrawnImage]:
    with parse_parquet(content, where) as parquet:
        metadata = parquet.metadata.metadata or {}
        version = metadata.get(VERSION_METADATA.encode(), b"").decode(errors="replace")
        if version.isdecimal() and version != str(DRAWN_VERSION):
            raise newer_version_error(where, version[:20], DRAWN_VERSION)
        has_columns = parquet.schema_arrow.equals(DRAWN_SCHEMA)
        if not version or not has_columns:
            raise ValueError("it has other columns than drawn images")
        if parquet.metadata.num_rows != len(rows):
            raise ValueError("it has other images than were planned")

        digest = hashlib.sha256()
        images: list[DrawnImage] = []
        for row, values in zip(rows, _iter_values(parquet), strict=True):
            _update(digest, values)
            images.append(_to_image(row, values, scores))
        stored_hash = metadata.get(HASH_METADATA.encode())
        if stored_hash != digest.hexdigest().encode():
            raise ValueError("its content has another hash")
        return images


def _iter_values(parquet: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    for batch in parquet.iter_batches(ROW_GROUP_IMAGES, use_threads=False):
        batch.validate(full=True)  # of texts, Arrow reads any bytes
        yield from batch.to_pylist()


def _to_values(image_id: str, image: DrawnImage) -> dict[str, Any]:
    return {
        "image_id": image_id,
        "status": image.status,
        "error": image.error,
        "candidate_rank": image.candidate_rank,
        "scores": [
            {"name": name, "value": score.value, "reason": score.reason}
            for name, score in image.scores.items()
        ],
        "pixels": None if image.rgb is None else image.rgb.tobytes(),
    }


def _to_image(row: ImageRow, values: dict[str, Any], scores: Collection[str]) -> DrawnImage:
    """The image of a row. Raises ValueError where it is none that is drawn of it."""
    if values["image_id"] != row.image_id:
        raise ValueError("it has other images than were planned")

    status = values["status"]
    rgb = _to_pixels(row, values["pixels"])
    has_pixels = rgb is not None
    if status not in STATUSES or has_pixels != (status == "ok"):
        raise ValueError("the column status has values that no run has")

    rank = values["candidate_rank"]
    if rank is not None and rank < 1:
        raise ValueError("the column candidate_rank has values that no run has")

    return DrawnImage(
        row.index_in_part,
        rgb,
        status,
        values["error"],
        scores=_to_scores(values["scores"], scores),
        candidate_rank=rank,
    )


def _to_pixels(row: ImageRow, pixels: bytes | None) -> RGB | None:
    """The pixels of a row's image. Raises ValueError where it has another size."""
    if pixels is None:
        return None
    if len(pixels) != _pixel_bytes(row):
        raise ValueError("an image has another size than was planned")

    width = row.parameters.width
    height = row.parameters.height
    array = np.frombuffer(pixels, np.uint8)
    return array.reshape(height, width, 3).copy()  # passes may write to it


def _to_scores(
    values: Sequence[dict[str, Any]] | None, names: Collection[str]
) -> dict[str, ScoreValue]:
    scores: dict[str, ScoreValue] = {}
    for score in values or []:
        name = score["name"]
        value = score["value"]
        is_new = name in names and name not in scores
        is_number = value is None or math.isfinite(value)
        if not (is_new and is_number):
            raise ValueError("the column scores has values that no run has")
        scores[name] = ScoreValue(value, score["reason"])
    return scores


def _update(digest: "hashlib._Hash", values: dict[str, Any]) -> None:
    known = dict(values)
    pixels = known.pop("pixels")
    if pixels is not None:
        known["pixels_sha256"] = hashlib.sha256(pixels).hexdigest()
    line = json.dumps(known, sort_keys=True)
    digest.update(f"{line}\n".encode())


def _pixel_bytes(row: ImageRow) -> int:
    parameters = row.parameters
    return parameters.width * parameters.height * 3
