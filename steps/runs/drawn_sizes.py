"""The sizes of images in runs whose passes change them: `width` and `height` are those of the file.

Two columns more say in which size an image was drawn, before any pass.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.job.passes import DRAWN_SIZE_COLUMNS
from imagekiln.steps.models.passes import PassSizes, Size
from imagekiln.steps.runs.tables import DRAWN_SIZE_SCHEMA

SIZE_COLUMNS = ("width", "height")


def with_final_sizes(rows: pa.Table, sizes: PassSizes) -> pa.Table:
    """Planned rows with the sizes in which images are stored, and those in which they are drawn."""
    if not sizes.alters_images:
        return rows
    for name, field in zip(SIZE_COLUMNS, DRAWN_SIZE_SCHEMA, strict=True):
        rows = rows.append_column(field, rows[name])
    drawn, places = _distinct_sizes(rows)
    final = np.array([sizes.final(size) for size in drawn], np.int64).reshape(-1, 2)[places]
    for axis, name in enumerate(SIZE_COLUMNS):
        index = rows.column_names.index(name)
        rows = rows.set_column(index, rows.schema.field(name), pa.array(final[:, axis]))
    return rows.combine_chunks()


def drawn_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of the size in which images were drawn, among those of a table."""
    return DRAWN_SIZE_COLUMNS if DRAWN_SIZE_COLUMNS[0] in names else SIZE_COLUMNS


def sum_work(rows: pa.Table, sizes: PassSizes) -> float:
    """What images take to draw, with the passes of diffusion, in pixels times steps."""
    strengths = pc.fill_null(rows["strength"], 1.0).to_numpy()
    steps = rows["steps"].to_numpy()
    drawn, places = _distinct_sizes(rows)
    pixels = np.array([width * height for width, height in drawn], np.float64)[places]
    work = float(np.sum(pixels * steps * strengths))
    for number in np.unique(steps):
        of_passes = np.array([sizes.work(size, int(number)) for size in drawn])
        work += float(np.sum(of_passes[places[steps == number]]))
    return work


def _distinct_sizes(rows: pa.Table) -> tuple[list[Size], npt.NDArray[np.int64]]:
    """Each size in which images are drawn, once, and for each row its place among them."""
    columns = [rows[name].to_numpy() for name in drawn_columns(rows.column_names)]
    sizes, places = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    return [(int(width), int(height)) for width, height in sizes], places.reshape(-1)
