"""One image of a run drawn again, from its row in the manifest, and how it compares with the one that is stored."""

import re
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import commands, fetch_image, names, parameters, plan, rounds, stats, tables
from imagekiln.steps.batch_table import halved
from imagekiln.steps.encode import Encoded, Picture, encode
from imagekiln.steps.encoder import notes
from imagekiln.steps.encodings import suffix
from imagekiln.steps.errors import BadInput, Incomplete, Missing
from imagekiln.steps.in_order import in_order
from imagekiln.steps.likeness import Likeness, likeness
from imagekiln.steps.plan import Plan
from imagekiln.steps.rows import ImageRow, image_rows
from imagekiln.steps.stats import ShardStats
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.store_errors import told

IMAGE_ID = re.compile(r"[0-9a-f]{32}")
Equal = Literal["bytes", "pixels", "nothing"]


@dataclass(frozen=True, slots=True)
class Made:
    """What an image was made with. `batch` is the number of images in a batch."""

    device: str
    batch: int
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Reproduced:
    """An image drawn again: where it was written, what of it is equal, and where it is not, by how much.

    `file` is None where it could not be drawn, `likeness` where nothing is to be compared. `then` is None where the
    shard left no statistics.
    """

    run: str
    image_id: str
    file: str | None
    equal: Equal
    status_then: str
    status_now: str
    error: str | None
    likeness: Likeness | None
    then: Made | None
    now: Made

    @property
    def same(self) -> bool:
        """Whether the pixels are the same."""
        return self.equal != "nothing"


def reproduce(uri: str, image_id: str, to: Path | None = None) -> Reproduced:
    """Draw an image of the run at `uri` again, in a batch of the same shape, and write it to a file.

    Without `to`, the file is named after the image and lies in the current folder. Raises BadInput where the run has
    no such image, Incomplete where it was never aggregated, and what loading a model raises.
    """
    if not IMAGE_ID.fullmatch(image_id):
        raise BadInput(f"{image_id!r} is no image_id. Copy the 32 digits from the manifest.")
    run, _ = rounds.home(uri)
    store = open_store(run)
    frozen = plan.load(store)
    row = find(store, frozen, image_id)
    then = _then(store, row)
    asked, job = image_rows(row)[0], frozen.job
    batch = _batch(frozen, asked, then)
    picture, now = _drawn(store, frozen, asked, batch)
    said = notes(asked, parameters.of(frozen), job.encoding, job.metadata)
    made = encode(picture, job.encoding, said)
    file = to or Path(f"{image_id}{suffix(job.encoding)}")
    if made.content is not None:
        with told(str(file)):
            file.write_bytes(made.content)
    before = row.to_pylist()[0]
    equal = _equal(before, made)
    apart = _apart(store, before, picture) if equal == "nothing" else None
    written = None if made.content is None else str(file)
    return Reproduced(
        store.uri, image_id, written, equal, before["status"], made.status, made.error, apart, _made(then, batch), now
    )


def find(store: Store, frozen: Plan, image_id: str) -> pa.Table:
    """The row of an image in the manifest, as a table. Reads only ids, and of those no more than it must."""
    ids = in_order(lambda number: _ids(store, number), len(frozen.shards))
    with closing(ids):  # type: ignore[type-var]  # a generator
        for number, column in enumerate(ids):
            if (place := pc.index(column, image_id).as_py()) >= 0:
                return tables.read(store, names.manifest(number)).slice(place, 1)
    raise BadInput(f"{store.uri}: has no image {image_id}. Copy an image_id of its manifest.")


def _ids(store: Store, number: int) -> pa.Array:
    try:
        return tables.column(store, names.manifest(number), "image_id")
    except Missing as error:
        told = f"Run `{commands.on_run('aggregate', store.uri)}` first."
        raise Incomplete(f"{store.uri}: has no whole manifest. {told}") from error


def _then(store: Store, row: pa.Table) -> ShardStats | None:
    made_by = names.made_by(str(row["part"][0].as_py()))
    if made_by is None:
        return None
    again, number = made_by
    return stats.load(open_store(f"{store.uri}/{names.round_folder(again)}") if again else store, number)


def _batch(frozen: Plan, row: ImageRow, then: ShardStats | None) -> int:
    """How many images the batch had that the row was drawn in."""
    width, height = row.pixels.width, row.pixels.height
    planned = frozen.batch(width, height)
    return planned if then is None else halved(min(then.batch, planned), width * height, then.batch_pixels)


def _drawn(store: Store, frozen: Plan, row: ImageRow, batch: int) -> tuple[Picture, Made]:
    # Only where pixels are made: torch takes seconds to import.
    from imagekiln.steps.device import describe
    from imagekiln.steps.opening import opened
    from imagekiln.steps.pipeline import versions
    from imagekiln.steps.rescue import Rescue

    denoiser = opened(frozen, store, code=False)
    rescue = Rescue(partial(denoiser.draw, check=lambda: None), lambda _: batch)
    (picture,) = next(rescue.batches([row]))
    return picture, Made(describe(denoiser.device), rescue.batch(row), versions(frozen.job))


def _equal(before: dict[str, object], made: Encoded) -> Equal:
    if made.content is None or before["status"] != "ok":
        return "nothing"
    if made.sha256 == before["sha256"]:
        return "bytes"
    return "pixels" if made.pixels_sha256 == before["pixels_sha256"] else "nothing"


def _apart(store: Store, before: dict[str, object], picture: Picture) -> Likeness | None:
    if picture.rgb is None or before["status"] != "ok":
        return None
    there = fetch_image.pixels(store, before)
    return likeness(there, picture.rgb) if there.shape == picture.rgb.shape else None


def _made(told_then: ShardStats | None, batch: int) -> Made | None:
    return None if told_then is None else Made(told_then.device, batch, told_then.versions)
