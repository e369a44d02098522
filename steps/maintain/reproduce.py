"""Regeneration of one image of a run, for comparison with the stored image."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.encoder import build_image_metadata, encode_drawn_image
from imagekiln.steps.generate.start import require_libraries
from imagekiln.steps.imaging.measures import PixelDifference, compare_pixels
from imagekiln.steps.job.output import file_suffix
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
    iter_named_parts,
    open_run,
    read_shard_columns,
    read_shard_manifest,
)
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runs.webui_text import model_label
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import Store

MAX_NAMED_IMAGES = 8

Equality = Literal["bytes", "pixels", "nothing"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Device, libraries and batch size that an image was generated with."""

    device: str
    batch: int
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class ReproduceResult:
    """A regenerated image, compared with the stored one.

    `file` is None if it could not be generated, `likeness` if there is nothing to compare with, and
    `then` if the shard has no statistics.
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
        """True if the pixels are the same."""
        return self.equal != "nothing"


def reproduce(
    uri: str,
    image_id: str,
    to: Path | None = None,
    *,
    report: Callable[[str], None] = lambda _: None,
) -> ReproduceResult:
    """Generate an image of the run at `uri` again, at its batch position, and write it to a file.

    `image_id` may be the id of the image's row, if only one image of the run has it. Without `to`,
    the file is named after the image and written to the current folder. `report` is called with a
    sentence before the model is loaded, which takes minutes. Raises BadInput if the run has no such
    image, Incomplete if it was never aggregated, and the errors of loading a model.
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
    stats = _find_stats(run, stored["part"])
    batch = _original_batch(run.plan, image_row, stats)
    place = _place_in_batch(run, stored, batch)
    report("Loading the model ...")
    drawn, now = _draw_again(run, image_row, batch, place)
    job = run.plan.job
    metadata = build_image_metadata(image_row, model_label(run.plan), job.encoding, job.metadata)
    encoded = encode_drawn_image(drawn, job.encoding, metadata)
    path = to or Path(f"{image_id}{file_suffix(job.encoding)}")
    if encoded.content is not None:
        with translate_errors(str(path)):
            path.write_bytes(encoded.content)
    equal, likeness = _compare(run.store, stored, drawn, encoded)
    return ReproduceResult(
        run=run.store.uri,
        image_id=image_id,
        file=None if encoded.content is None else str(path),
        equal=equal,
        status_then=stored["status"],
        status_now=encoded.status,
        error=encoded.error,
        likeness=likeness,
        then=None if stats is None else Provenance(stats.device, batch, stats.versions),
        now=now,
    )


def _find_row(run: Run, name: str) -> pa.Table:
    """Find the manifest row of an image, by its `image_id` or its row's id, as a one-row table.

    Raises BadInput if the run has no such image, or several with this row id.
    """

    def find(number: int) -> pa.Table | None:
        ids = read_shard_columns(run, number, ["image_id", "id"])
        is_image = pc.equal(ids["image_id"], name)
        is_row = pc.equal(ids["id"], name)
        indices = pc.indices_nonzero(pc.or_kleene(is_image, is_row))
        if not len(indices):
            return None
        manifest = read_shard_manifest(run, number)
        return manifest.take(indices)

    tables = list(filter(None, map_ordered(find, len(run.plan.shards))))
    if not tables:
        raise BadInput(
            f"{run.store.uri}: has no image {name!r}, neither as image_id nor as the id of a row. "
            "Copy an image_id from its manifest, or from the link of a thumbnail in the report."
        )
    rows = pa.concat_tables(tables)
    if rows.num_rows > 1:
        first_rows = rows.slice(0, MAX_NAMED_IMAGES)
        some = first_rows.select(["image_id", "status"]).to_pylist()
        images = ", ".join(f"{row['image_id']} ({row['status']})" for row in some)
        raise BadInput(
            f"{run.store.uri}: {rows.num_rows:,} images have the id {name!r}. Name one by its "
            f"image_id, such as: {images}"
        )
    return rows


def _find_stats(run: Run, part: str | None) -> ShardStats | None:
    """Return the statistics of the shard that a part belongs to, if there are any."""
    location = parse_part_key(part or "")
    if location is None:
        return None
    retry, shard = location
    attempts = [attempt for attempt in read_attempts(run.store) if attempt.retry == retry]
    return next((stats for stats in merge_stats(attempts) if stats.shard == shard), None)


def _original_batch(plan: Plan, row: ImageRow, stats: ShardStats | None) -> int:
    """Return the number of images in the batch that generated the image."""
    if stats is not None and stats.one_at_a_time is not None:
        return 1
    if plan.has_references and row.parameters.reference_images is not None:
        return 1
    width = row.parameters.width
    height = row.parameters.height
    planned = plan.batch_size(width, height)
    if stats is None:
        return planned
    most = min(stats.max_batch_size, planned)
    return limit_batch_pixels(most, width * height, stats.max_batch_pixels)


def _place_in_batch(run: Run, stored: Mapping[str, Any], batch: int) -> int:
    """Return the index of an image in its batch: GPU kernels may round differently at each."""
    if stored["part"] is None:
        return 0
    [part] = iter_named_parts(run, [stored["part"]])
    for group in group_by_shape(image_rows(part.rows)):
        image_ids = [row.image_id for row in group]
        if stored["image_id"] in image_ids:
            planned_batch = _original_batch(run.plan, group[0], None)
            # If memory ran out, each planned batch was split into smaller ones.
            return image_ids.index(stored["image_id"]) % planned_batch % batch
    return 0


def _draw_again(run: Run, row: ImageRow, batch: int, place: int) -> tuple[DrawnImage, Provenance]:
    """Generate the image at this position in a batch, and run its passes."""
    require_libraries()
    # Imported only to generate pixels: torch takes seconds to import.
    from imagekiln.steps.generate.diffusion.device import describe_device
    from imagekiln.steps.generate.diffusion.pipeline import library_versions
    from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
    from imagekiln.steps.generate.passes import load_passes
    from imagekiln.steps.generate.source_images import load_image_source

    plan = run.plan
    with closing(load_image_source(plan, run.store)) as denoiser:
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


def _compare(
    store: Store, stored: Mapping[str, Any], drawn: DrawnImage, encoded: EncodedImage
) -> tuple[Equality, PixelDifference | None]:
    """Compare an image with the stored one, and measure the distance if their pixels differ."""
    if drawn.rgb is None or stored["status"] != "ok":
        return "nothing", None
    if encoded.sha256 == stored["sha256"]:
        return "bytes", None
    if encoded.pixels_sha256 == stored["pixels_sha256"]:
        return "pixels", None
    pixels = read_image_pixels(store, stored)
    has_same_shape = pixels.shape == drawn.rgb.shape
    return "nothing", compare_pixels(pixels, drawn.rgb) if has_same_shape else None
