"""A part: the images of one slice of a shard, whose commit is one Parquet object that is there whole or not at all.

In the format `parquet` it holds the images too. Then `image` comes first and is neither compressed nor
dictionary-encoded, so that each file's bytes lie in one piece: the footer tells where, and one ranged read fetches an
image without a Parquet reader. In other formats it is the index of images that lie elsewhere.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps import quality, tables
from imagekiln.steps.encode import Encoded
from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage import Store
from imagekiln.steps.store_errors import is_storage

OFFSETS = b"imagekiln.offsets"
# What Hugging Face datasets reads to show the column as images.
FEATURES = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a part says of its images, without their bytes: `image_id`, the outcome's columns, and offsets."""

    table: pa.Table
    offsets: pa.Array


def to_bytes(rows: pa.Table, images: Sequence[Encoded]) -> bytes:
    """The part of these image rows with their images. The same rows and images give the same bytes."""
    table = _table(rows, images)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **_options(table.schema)) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        offsets = list(_offsets(sink.getvalue(), images))
        writer.add_key_value_metadata({OFFSETS.decode(): json.dumps(offsets)})
    return sink.getvalue()


def index(rows: pa.Table, outcome: pa.Table, offsets: Sequence[int | None]) -> bytes:
    """The part of these image rows without their images, which begin at `offsets` in objects of their own."""
    table = told(rows, outcome).replace_schema_metadata({OFFSETS.decode(): json.dumps(list(offsets))})
    return tables.to_parquet(table)


def told(rows: pa.Table, outcome: pa.Table) -> pa.Table:
    """All that there is to say of images: their rows and, in the same order, what became of them."""
    return pa.Table.from_arrays([*rows.columns, *outcome.columns], schema=pa.schema([*rows.schema, *outcome.schema]))


def outcome(images: Sequence[Encoded]) -> pa.Table:
    """What became of the images, in the order of their rows."""
    ordered = sorted(images, key=lambda image: image.place)
    values = {
        "status": [image.status for image in ordered],
        "error": [image.error for image in ordered],
        "size": [None if image.content is None else len(image.content) for image in ordered],
        "sha256": [image.sha256 for image in ordered],
        "pixels_sha256": [image.pixels_sha256 for image in ordered],
        **quality.columns([image.quality for image in ordered]),
    }
    return pa.table(values, schema=tables.OUTCOME)


def commit(store: Store, key: str, rows: pa.Table, content: bytes) -> None:
    """Create the part, or find that another pod made it first. Raises BadInput where it holds other images."""
    if not store.create(key, content):
        check(store, key, rows)


def check(store: Store, key: str, rows: pa.Table) -> None:
    """Make sure that the part which is there holds the images of these rows. Raises BadInput."""
    refuse_others(store.at(key), outcomes(store, key, ["image_id"]), rows)


def refuse_others(where: str, there: Outcomes, rows: pa.Table) -> None:
    """Raise BadInput unless the part holds exactly the images of these rows."""
    if there.table["image_id"].combine_chunks() != rows["image_id"].combine_chunks():
        raise BadInput(f"{where}: holds the images of another plan. Choose another run_id or output.")


def outcomes(store: Store, key: str, columns: Sequence[str]) -> Outcomes:
    """Read a part's metadata and none of its images. Raises Missing, or BadInput where it is damaged."""
    with store.open(key) as file:
        try:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            table = parquet.read(columns=list(columns), use_threads=False)
            there = _offsets_in(parquet)
        except (*tables.DAMAGED, KeyError) as error:
            if is_storage(error):
                raise
            raise tables.damaged(store.at(key), error) from error
    return Outcomes(table, there)


def offsets(content: bytes, where: str) -> pa.Array:
    """Where each image's bytes begin in a part that was read whole; null where there is none. Raises BadInput."""
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as parquet:
            return _offsets_in(parquet)
    except (*tables.DAMAGED, KeyError) as error:
        raise tables.damaged(where, error) from error


def _offsets_in(parquet: pq.ParquetFile) -> pa.Array:
    told = json.loads((parquet.metadata.metadata or {})[OFFSETS])
    places = np.array([-1 if offset is None else offset for offset in told], np.int64)
    return pa.array(places, mask=places < 0)  # of a list with a None, each would look for pandas, for milliseconds


def _table(rows: pa.Table, images: Sequence[Encoded]) -> pa.Table:
    ordered = sorted(images, key=lambda image: image.place)
    names = rows["image_id"].to_pylist()
    files = [
        None if image.content is None else {"bytes": image.content, "path": f"{name}{image.suffix}"}
        for name, image in zip(names, ordered, strict=True)
    ]
    said = told(rows, outcome(images))
    schema = pa.schema([tables.IMAGE, *said.schema], metadata={"huggingface": FEATURES})
    return pa.Table.from_arrays([pa.array(files, tables.IMAGE.type), *said.columns], schema=schema)


def _options(schema: pa.Schema) -> dict[str, object]:
    plain = {"image.bytes", "image.path"}
    others = [name for name in schema.names if name != tables.IMAGE.name]
    return {
        **tables.options(schema),
        "compression": {**dict.fromkeys(plain, "none"), **dict.fromkeys(others, "zstd")},
        "write_statistics": others,
    }


def _offsets(written: bytes, images: Sequence[Encoded]) -> Iterator[int | None]:
    """Where each image's bytes begin in what was written so far."""
    position = 0
    for image in sorted(images, key=lambda image: image.place):
        if image.content is None:
            yield None
            continue
        position = written.index(image.content, position)
        yield position
        position += len(image.content)
