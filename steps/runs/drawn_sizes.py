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
    final_sizes = [sizes.final(size) for size in drawn]
    final = np.array(final_sizes, np.int64).reshape(-1, 2)[places]

    for axis, name in enumerate(SIZE_COLUMNS):
        index = rows.column_names.index(name)
        field = rows.schema.field(name)
        values = pa.array(final[:, axis])
        rows = rows.set_column(index, field, values)
    return rows.combine_chunks()


def drawn_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of the size in which images were drawn, among those of a table."""
    return DRAWN_SIZE_COLUMNS if DRAWN_SIZE_COLUMNS[0] in names else SIZE_COLUMNS


def sum_work(rows: pa.Table, sizes: PassSizes) -> float:
    """What images take to draw, with the passes of diffusion, in pixels times steps."""
    strengths = pc.fill_null(rows["strength"], 1.0).to_numpy()
    steps = rows["steps"].to_numpy()

    drawn, places = _distinct_sizes(rows)
    drawn_pixels = [width * height for width, height in drawn]
    pixels = np.array(drawn_pixels, np.float64)[places]
    work = float(np.sum(pixels * steps * strengths))

    for number in np.unique(steps):
        work_of_sizes = [sizes.work(size, int(number)) for size in drawn]
        has_number = steps == number
        rows_of_number = places[has_number]
        work_of_rows = np.array(work_of_sizes)[rows_of_number]
        work += float(np.sum(work_of_rows))
    return work


def _distinct_sizes(rows: pa.Table) -> tuple[list[Size], npt.NDArray[np.int64]]:
    """Each size in which images are drawn, once, and for each row its place among them."""
    names = drawn_columns(rows.column_names)
    widths, heights = (rows[name].to_numpy() for name in names)
    both = np.stack([widths, heights], axis=1)
    distinct, places = np.unique(both, axis=0, return_inverse=True)

    sizes = []
    for width, height in distinct:
        sizes.append((int(width), int(height)))
    return sizes, places.reshape(-1)
