"""The sizes of images in runs whose passes change them: `width` and `height` are those of the file.

Two columns more say in which size an image was drawn, before any pass.
"""

from collections.abc import Sequence

import pyarrow as pa

from imagekiln.steps.job.passes import DRAWN_SIZE_COLUMNS
from imagekiln.steps.models.passes import PassSizes
from imagekiln.steps.runs.tables import DRAWN_SIZE_SCHEMA

SIZE_COLUMNS = ("width", "height")


def with_final_sizes(rows: pa.Table, sizes: PassSizes) -> pa.Table:
    """Planned rows with the sizes in which images are stored, and those in which they are drawn."""
    if not sizes.alters_images:
        return rows
    widths, heights = (rows[name].to_pylist() for name in SIZE_COLUMNS)
    drawn = list(zip(widths, heights, strict=True))
    final_sizes = {size: sizes.final(size) for size in set(drawn)}
    final = [final_sizes[size] for size in drawn]

    for name, field in zip(SIZE_COLUMNS, DRAWN_SIZE_SCHEMA, strict=True):
        rows = rows.append_column(field, rows[name])
    for axis, name in enumerate(SIZE_COLUMNS):
        index = rows.column_names.index(name)
        field = rows.schema.field(name)
        values = [size[axis] for size in final]
        column = pa.array(values, field.type)
        rows = rows.set_column(index, field, column)
    return rows.combine_chunks()


def drawn_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of the size in which images were drawn, among those of a table."""
    return DRAWN_SIZE_COLUMNS if DRAWN_SIZE_COLUMNS[0] in names else SIZE_COLUMNS


def sum_work(rows: pa.Table, sizes: PassSizes) -> float:
    """What images take to draw, with the passes of diffusion, in pixels times steps."""
    names = [*drawn_columns(rows.column_names), "steps", "strength"]
    groups = rows.select(names).group_by(names, use_threads=False)
    counted = groups.aggregate([([], "count_all")])
    columns = [column.to_pylist() for column in counted.columns]

    work = 0.0
    for width, height, steps, strength, images in zip(*columns, strict=True):
        drawn = width * height * steps
        if strength is not None:
            drawn *= strength
        size = width, height
        in_passes = sizes.work(size, steps)
        work += images * (drawn + in_passes)
    return work
