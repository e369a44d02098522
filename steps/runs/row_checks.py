"""Whether rows of a run can be what it wrote, whoever put the object there that they come from.

Hashes do not say so: who changes a shard also changes its hash in the plan. All functions raise
ValueError, which the readers of Parquet objects report as damage.
"""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.job.columns import (
    INPUT_IMAGE_COLUMNS,
    MAX_IMAGES_PER_ROW,
    MAX_SEED,
    MAX_SIDE,
    PROMPT_COLUMNS,
)
from imagekiln.steps.job.passes import DRAWN_SIZE_COLUMNS
from imagekiln.steps.models.loras import parse_loras
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, MISSING_STATUS, OUTSCORED_STATUS
from imagekiln.steps.runs.keys import IMAGE_OBJECT_PATTERN

STATUSES = (
    "ok",
    "blank",
    "filtered",
    "failed",
    OUTSCORED_STATUS,
    FORGOTTEN_STATUS,
    MISSING_STATUS,
)
MAX_IMAGE_BYTES = 2**31 - 1  # of a value in a Parquet page
MAX_OFFSET = 2**62
IMAGE_ID_PATTERN = "^[0-9a-f]{32}$"
SHA256_PATTERN = "^[0-9a-f]{64}$"
OUTCOME_BOUNDS = {"byte_size": (1, MAX_IMAGE_BYTES), "byte_offset": (0, MAX_OFFSET)}
OUTCOME_PATTERNS = {
    "sha256": SHA256_PATTERN,
    "pixels_sha256": SHA256_PATTERN,
    "part": IMAGE_OBJECT_PATTERN,
}
REQUIRED_TEXTS = ("prompt", "negative_prompt", "sampler")
# A seed is that of the row and the image's index.
NUMBER_BOUNDS: dict[str, tuple[float, float]] = {
    "image_index": (0, MAX_IMAGES_PER_ROW),
    "input_row": (0, MAX_OFFSET),
    "seed": (0, MAX_SEED),
    "width": (1, MAX_SIDE),
    "height": (1, MAX_SIDE),
    **{
        column.name: (column.bounds.lowest, column.bounds.highest)
        for column in PROMPT_COLUMNS
        if column.bounds is not None and column.name in ("steps", "guidance")
    },
}
REQUIRED_COLUMNS = ("image_id", "id", "strength", *REQUIRED_TEXTS, *NUMBER_BOUNDS)


def check_image_rows(rows: pa.Table) -> None:
    """Check what is planned of images, such as the rows of a shard."""
    image_ids = rows["image_id"]
    _require(_matches(image_ids, IMAGE_ID_PATTERN), "image_id")
    if len(image_ids.unique()) != len(rows):
        raise ValueError("two images have the same image_id")

    for name in REQUIRED_TEXTS:
        _require(pc.is_valid(rows[name]), name)
    sizes = {name: (1, MAX_SIDE) for name in DRAWN_SIZE_COLUMNS if name in rows.column_names}
    for name, (lowest, highest) in (NUMBER_BOUNDS | sizes).items():
        is_inside = _is_between(rows[name], lowest, highest)
        _require(is_inside, name)

    for name in INPUT_IMAGE_COLUMNS:
        if name in rows.column_names:
            values = rows[name]
            is_digest = _matches(values, SHA256_PATTERN)
            _require(_or_null(values, is_digest), name)
    strengths = rows["strength"]
    is_share = _is_between(strengths, 0, 1)
    _require(_or_null(strengths, is_share), "strength")


def check_loras(rows: pa.Table, names: Collection[str]) -> None:
    """Check that rows are drawn with LoRAs of these names alone."""
    if "loras" not in rows.column_names:
        return
    texts = rows["loras"].drop_null().unique()
    for text in texts.to_pylist():
        parsed = parse_loras(text, names)
        if parsed.canonical != text:
            raise ValueError("the column loras has other LoRAs than the plan")


def check_outcomes(outcomes: pa.Table) -> None:
    """Check what became of images, as far as there are columns of it.

    An image that is ok has a file with hashes, in an object of the run.
    """
    status = outcomes["status"]
    _require(pc.is_valid(status), "status")
    _require(pc.is_in(status, pa.array(STATUSES)), "status")

    is_not_ok = pc.not_equal(status, "ok")
    for name in outcomes.column_names:
        values = outcomes[name]
        is_absent = pc.and_(is_not_ok, pc.is_null(values))
        if name in OUTCOME_BOUNDS:
            lowest, highest = OUTCOME_BOUNDS[name]
            is_inside = _is_between(values, lowest, highest)
            _require(pc.or_(is_inside, is_absent), name)
        elif name in OUTCOME_PATTERNS:
            is_match = _matches(values, OUTCOME_PATTERNS[name])
            _require(pc.or_(is_match, is_absent), name)


def check_offsets(offsets: pa.Array, outcomes: pa.Table) -> None:
    """Check that there is an offset for each image of a part, and one of those that are ok."""
    if len(offsets) != outcomes.num_rows:
        raise ValueError("it has other offsets than images")
    if "status" in outcomes.column_names:
        is_ok = pc.equal(outcomes["status"], "ok")
        ok_offsets = offsets.filter(is_ok.combine_chunks())
        is_inside = _is_between(ok_offsets, 0, MAX_OFFSET)
        _require(is_inside, "offsets")


def _is_between(values: pa.ChunkedArray, lowest: float, highest: float) -> pa.ChunkedArray:
    """For each value whether it is in the range, which neither null nor not-a-number is."""
    is_high_enough = pc.greater_equal(values, lowest)
    is_low_enough = pc.less_equal(values, highest)
    is_inside = pc.and_(is_high_enough, is_low_enough)
    return pc.fill_null(is_inside, False)


def _matches(texts: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray:
    is_match = pc.match_substring_regex(texts, pattern)
    return pc.fill_null(is_match, False)


def _or_null(values: pa.ChunkedArray, is_right: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.or_(pc.is_null(values), is_right)


def _require(is_right: pa.ChunkedArray, column: str) -> None:
    all_right = pc.all(is_right, min_count=0)
    if not all_right.as_py():
        raise ValueError(f"the column {column} has values that no run has")
