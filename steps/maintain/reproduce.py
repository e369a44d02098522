"""Generates one image of a run again, and compares it with the stored one."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.encoder import build_image_metadata, encode_drawn_image
from imagekiln.steps.generate.start import require_libraries
from imagekiln.steps.imaging.measures import PixelDifference, compare_pixels
from imagekiln.steps.job.output import file_suffix
from imagekiln.steps.models.families import family_of
from imagekiln.steps.models.performance import limit_batch_pixels
from imagekiln.steps.runs.attempts import merge_stats, read_attempts
from imagekiln.steps.runs.image import (
    FORGOTTEN_STATUS,
    DrawnImage,
    EncodedImage,
    ImageRow,
    group_by_shape,
    image_rows,
)
from imagekiln.steps.runs.keys import parse_part_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.readback import read_image_pixels
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runs.run import (
    Run,
    open_run,
    read_shard_columns,
    read_shard_manifest,
)
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runs.webui_text import model_label
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import Store

IMAGE_ID_PATTERN = re.compile(r"[0-9a-f]{32}")
MAX_NAMED_IMAGES = 8

Equality = Literal["bytes", "pixels", "nothing"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """The device and libraries that generated an image, and the images of a batch."""

    device: str
    batch: int
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class ReproduceResult:
    """An image generated again, compared with the stored one.

    `file` is None if it could not be drawn, `likeness` if there is nothing to compare, and
    `then` if the shard left no statistics.
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
        """Tell if the pixels are the same."""
        return self.equal != "nothing"


def reproduce(
    uri: str,
    image_id: str,
    to: Path | None = None,
    *,
    report: Callable[[str], None] = lambda _: None,
) -> ReproduceResult:
    """Generate an image of the run at `uri` again, in its place of a batch, and write it to a file.

    `image_id` may be the id of the image's row, if one image of the run has it.
    Without `to`, the file is named after the image and lies in the current folder. `report` is
    called with a sentence before the model is loaded, which takes minutes. Raises BadInput
    if the run has no such image, Incomplete if it was never aggregated, and what loading a
    model raises.
    """
    run = open_run(uri)
    manifest_row = _find_row(run, image_id)
    (image_row,) = image_rows(manifest_row)
    (stored,) = to_rows(manifest_row)
    image_id = stored["image_id"]
    if stored["status"] == FORGOTTEN_STATUS:
        raise BadInput(
            f"{run.store.uri}: image {image_id} was taken down, so it is not made again. Name "
            "another one."
        )
    path = to or Path(f"{image_id}{file_suffix(run.plan.job.encoding)}")
    _require_writable(path.parent)
    origin = _find_origin(run, str(stored["part"]))
    stats = None if origin is None else _find_stats(run, origin)
    batch = _original_batch(run.plan, image_row, stats)
    place = 0 if origin is None else _place_in_batch(run.store, origin, image_id, batch)
    report("Loading the model ...")
    drawn, now = _draw_again(run, image_row, batch, place)
    job = run.plan.job
    metadata = build_image_metadata(image_row, model_label(run.plan), job.encoding, job.metadata)
    encoded = encode_drawn_image(drawn, job.encoding, metadata)
    equal = _equality(stored, encoded)
    likeness = _compare_pixels(run.store, stored, drawn) if equal == "nothing" else None
    return ReproduceResult(
        run=run.store.uri,
        image_id=image_id,
        file=_write_image(encoded, path),
        equal=equal,
        status_then=stored["status"],
        status_now=encoded.status,
        error=encoded.error,
        likeness=likeness,
        then=None if stats is None else Provenance(stats.device, batch, stats.versions),
        now=now,
    )


def _find_row(run: Run, name: str) -> pa.Table:
    """The manifest row of an image, by its `image_id` or its row's id, as a table of one row.

    Reads nothing but ids until it is found. Raises BadInput if the run has no such image, or
    several whose rows have this id.
    """
    if IMAGE_ID_PATTERN.fullmatch(name):
        for row in _find_positions(run, "image_id", name):
            return _read_row(run, row)
    positions = list(_find_positions(run, "id", name))
    if not positions:
        raise BadInput(
            f"{run.store.uri}: has no image {name!r}, neither as image_id nor as the id of a row. "
            "Copy an image_id from its manifest, or from the link of a thumbnail in the report."
        )
    rows = [_read_row(run, position) for position in positions[:MAX_NAMED_IMAGES]]
    if len(positions) > 1:
        named = pa.concat_tables(rows).select(["image_id", "status"]).to_pylist()
        images = ", ".join(f"{row['image_id']} ({row['status']})" for row in named)
        raise BadInput(
            f"{run.store.uri}: {len(positions):,} images have the id {name!r}. Name one of them by "
            f"its image_id: {images}{' ...' if len(positions) > len(rows) else ''}"
        )
    return rows[0]


def _find_positions(run: Run, column: str, value: str) -> Iterator[tuple[int, int]]:
    """The shard and the row in its manifest of each image that has this value."""
    shards = len(run.plan.shards)
    columns = map_ordered(lambda number: read_shard_columns(run, number, [column])[column], shards)
    with closing(columns):
        for number, ids in enumerate(columns):
            matches = pc.equal(ids, value)
            for index in pc.indices_nonzero(matches).to_pylist():
                yield number, index


def _read_row(run: Run, position: tuple[int, int]) -> pa.Table:
    number, index = position
    return read_shard_manifest(run, number).slice(index, 1)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The shard that an image was drawn in, of the run's plan or of a retry's."""

    plan: Plan
    shard: int


def _find_origin(run: Run, part: str) -> _Origin | None:
    """The shard that planned the images of a part; None if the manifest names no such part."""
    location = parse_part_key(part)
    if location is None:
        return None
    retry, shard = location
    plans = {plan.retry: plan for plan in (run.plan, *run.retry_plans)}
    return _Origin(plans[retry], shard) if retry in plans else None


def _find_stats(run: Run, origin: _Origin) -> ShardStats | None:
    attempts = [
        attempt for attempt in read_attempts(run.store) if attempt.retry == origin.plan.retry
    ]
    return next((each for each in merge_stats(attempts) if each.shard == origin.shard), None)


def _place_in_batch(store: Store, origin: _Origin, image_id: str, batch: int) -> int:
    """The place, from 0, that an image had in its batch: a GPU's kernels round otherwise in others.

    In families whose images are drawn one by one, each has the first.
    """
    if family_of(origin.plan.model.pipeline).one_at_a_time:
        return 0
    for part in read_shard(store, origin.plan, origin.shard):
        rows = image_rows(part.rows)
        for group in group_by_shape(rows):
            image_ids = [row.image_id for row in group]
            if image_id in image_ids:
                index = image_ids.index(image_id)
                planned_batch = _original_batch(origin.plan, group[0], None)
                # Where memory ran out, each planned batch was cut into smaller ones.
                return index % planned_batch % batch
    return 0


def _original_batch(plan: Plan, row: ImageRow, stats: ShardStats | None) -> int:
    """The number of images in the batch in which the image was generated."""
    width = row.parameters.width
    height = row.parameters.height
    planned = plan.batch_size(width, height)
    if stats is None:
        return planned
    most = min(stats.max_batch_size, planned)
    return limit_batch_pixels(most, width * height, stats.max_batch_pixels)


def _draw_again(run: Run, row: ImageRow, batch: int, place: int) -> tuple[DrawnImage, Provenance]:
    """Draw the image in this place of a batch, and run its passes."""
    require_libraries()
    # Only for making pixels: torch takes seconds to import.
    from imagekiln.steps.generate.diffusion.denoiser import load_denoiser
    from imagekiln.steps.generate.diffusion.device import describe_device
    from imagekiln.steps.generate.diffusion.pipeline import library_versions
    from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
    from imagekiln.steps.generate.passes import load_passes

    plan = run.plan
    with closing(load_denoiser(plan, run.store)) as denoiser:
        recovery = BatchRecovery(partial(denoiser.draw, check=lambda: None), lambda _: batch)
        rows = [row] * (place + 1)
        *_, drawn = next(recovery.draw_batches(rows))
        if plan.job.passes:
            denoiser.passes = load_passes(plan, run.store, denoiser.device, denoiser)
            (drawn,) = denoiser.passes([drawn], [row], lambda: None).images
    provenance = Provenance(
        device=describe_device(denoiser.device),
        batch=recovery.batch_size(row),
        versions=library_versions(plan.job),
    )
    return drawn, provenance


def _require_writable(folder: Path) -> None:
    """Raise BadInput if the file could not be written, before the image is drawn."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BadInput(f"{folder}: is no folder that can be written to. Choose another --to.")


def _write_image(encoded: EncodedImage, path: Path) -> str | None:
    if encoded.content is None:
        return None
    with translate_errors(str(path)):
        path.write_bytes(encoded.content)
    return str(path)


def _equality(stored: dict[str, object], encoded: EncodedImage) -> Equality:
    if encoded.content is None or stored["status"] != "ok":
        return "nothing"
    if encoded.sha256 == stored["sha256"]:
        return "bytes"
    return "pixels" if encoded.pixels_sha256 == stored["pixels_sha256"] else "nothing"


def _compare_pixels(
    store: Store, stored: dict[str, object], drawn: DrawnImage
) -> PixelDifference | None:
    """The distance of the image from the stored one; None if one of them has no pixels."""
    if drawn.rgb is None or stored["status"] != "ok":
        return None
    stored_rgb = read_image_pixels(store, stored)
    if stored_rgb.shape != drawn.rgb.shape:
        return None
    return compare_pixels(stored_rgb, drawn.rgb)
