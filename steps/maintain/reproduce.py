"""One image of a run drawn again, from its row in the manifest, and how it compares with the one that is stored."""

import re
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, Incomplete, Missing
from imagekiln.steps.generate.encoder import build_image_metadata, encode_drawn_image
from imagekiln.steps.imaging.measures import PixelDifference, compare_pixels
from imagekiln.steps.job.output import file_suffix
from imagekiln.steps.models.performance import limit_batch_pixels
from imagekiln.steps.runs.image import DrawnImage, EncodedImage, ImageRow, image_rows
from imagekiln.steps.runs.keys import manifest_key, parse_part_key, round_folder
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.readback import read_image_pixels
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.runs.stats import ShardStats, load_stats
from imagekiln.steps.runs.tables import read_column, read_table
from imagekiln.steps.runs.webui_text import model_label
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import Store

IMAGE_ID_PATTERN = re.compile(r"[0-9a-f]{32}")
Equality = Literal["bytes", "pixels", "nothing"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """What an image was made with. `batch` is the number of images in a batch."""

    device: str
    batch: int
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class ReproduceResult:
    """An image drawn again: where it was written, what of it is equal, and where it is not, by how much.

    `file` is None where it could not be drawn, `likeness` where nothing is to be compared. `then` is None where the
    shard left no statistics.
    """

    run: str
    image_id: str
    file: str | None
    equal: Equality
    status_then: str
    status_now: str
    error: str | None
    likeness: PixelDifference | None
    then: Provenance | None
    now: Provenance

    @property
    def has_same_pixels(self) -> bool:
        """Whether the pixels are the same."""
        return self.equal != "nothing"


def reproduce(uri: str, image_id: str, to: Path | None = None) -> ReproduceResult:
    """Draw an image of the run at `uri` again, in a batch of the same shape, and write it to a file.

    Without `to`, the file is named after the image and lies in the current folder. Raises BadInput where the run has
    no such image, Incomplete where it was never aggregated, and what loading a model raises.
    """
    if not IMAGE_ID_PATTERN.fullmatch(image_id):
        raise BadInput(f"{image_id!r} is no image_id. Copy the 32 digits from the manifest.")
    run, _ = resolve_run(uri)
    store = open_store(run)
    frozen = load_plan(store)
    row = find_row(store, frozen, image_id)
    then = _original_stats(store, row)
    asked, job = image_rows(row)[0], frozen.job
    batch = _original_batch(frozen, asked, then)
    picture, now = _draw_again(store, frozen, asked, batch)
    said = build_image_metadata(asked, model_label(frozen), job.encoding, job.metadata)
    made = encode_drawn_image(picture, job.encoding, said)
    file = to or Path(f"{image_id}{file_suffix(job.encoding)}")
    if made.content is not None:
        with translate_errors(str(file)):
            file.write_bytes(made.content)
    before = row.to_pylist()[0]
    equal = _equality(before, made)
    apart = _compare_pixels(store, before, picture) if equal == "nothing" else None
    written = None if made.content is None else str(file)
    return ReproduceResult(
        store.uri,
        image_id,
        written,
        equal,
        before["status"],
        made.status,
        made.error,
        apart,
        _provenance(then, batch),
        now,
    )


def find_row(store: Store, frozen: Plan, image_id: str) -> pa.Table:
    """The row of an image in the manifest, as a table. Reads only ids, and of those no more than it must."""
    ids = map_ordered(lambda number: _read_image_ids(store, number), len(frozen.shards))
    with closing(ids):  # type: ignore[type-var]  # a generator
        for number, column in enumerate(ids):
            if (place := pc.index(column, image_id).as_py()) >= 0:
                return read_table(store, manifest_key(number)).slice(place, 1)
    raise BadInput(f"{store.uri}: has no image {image_id}. Copy an image_id of its manifest.")


def _read_image_ids(store: Store, number: int) -> pa.Array:
    try:
        return read_column(store, manifest_key(number), "image_id")
    except Missing as error:
        told = f"Run `{format_command('aggregate', store.uri)}` first."
        raise Incomplete(f"{store.uri}: has no whole manifest. {told}") from error


def _original_stats(store: Store, row: pa.Table) -> ShardStats | None:
    made_by = parse_part_key(str(row["part"][0].as_py()))
    if made_by is None:
        return None
    again, number = made_by
    return load_stats(open_store(f"{store.uri}/{round_folder(again)}") if again else store, number)


def _original_batch(frozen: Plan, row: ImageRow, then: ShardStats | None) -> int:
    """How many images the batch had that the row was drawn in."""
    width, height = row.parameters.width, row.parameters.height
    planned = frozen.batch_size(width, height)
    return (
        planned
        if then is None
        else limit_batch_pixels(
            min(then.max_batch_size, planned), width * height, then.max_batch_pixels
        )
    )


def _draw_again(
    store: Store, frozen: Plan, row: ImageRow, batch: int
) -> tuple[DrawnImage, Provenance]:
    # Only where pixels are made: torch takes seconds to import.
    from imagekiln.steps.generate.diffusion.denoiser import load_denoiser
    from imagekiln.steps.generate.diffusion.device import describe_device
    from imagekiln.steps.generate.diffusion.pipeline import library_versions
    from imagekiln.steps.generate.recovery import BatchRecovery

    denoiser = load_denoiser(frozen, store, code=False)
    rescue = BatchRecovery(partial(denoiser.draw, check=lambda: None), lambda _: batch)
    (picture,) = next(rescue.draw_batches([row]))
    return picture, Provenance(
        describe_device(denoiser.device), rescue.batch_size(row), library_versions(frozen.job)
    )


def _equality(before: dict[str, object], made: EncodedImage) -> Equality:
    if made.content is None or before["status"] != "ok":
        return "nothing"
    if made.sha256 == before["sha256"]:
        return "bytes"
    return "pixels" if made.pixels_sha256 == before["pixels_sha256"] else "nothing"


def _compare_pixels(
    store: Store, before: dict[str, object], picture: DrawnImage
) -> PixelDifference | None:
    if picture.rgb is None or before["status"] != "ok":
        return None
    there = read_image_pixels(store, before)
    return compare_pixels(there, picture.rgb) if there.shape == picture.rgb.shape else None


def _provenance(told_then: ShardStats | None, batch: int) -> Provenance | None:
    return None if told_then is None else Provenance(told_then.device, batch, told_then.versions)
