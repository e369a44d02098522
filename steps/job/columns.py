"""The columns of a prompt row: what each holds, what it decides, and which values are accepted.

To add a column:

1. List it at the end of `PROMPT_COLUMNS`.
   - `identity`: `optional` if it decides pixels. Rows without a value then keep their image ids;
     `always` would change every id.
   - `in_shape`: True if the pipeline takes one value for a whole batch. If False, skip what is said
     below about the shape.
2. Add it to `ColumnNames` and, if a job may set a default, to `RowDefaults` (`job.py`). Let that
   default be None: any other gives every row a value, and so every image another id.
3. Select it in `_filled_sql` of `steps/plan/image_sql.py`, with the job's default (NULL in SQL
   where that is None). If it is neither in the shape nor an input image, name it in `images_sql`
   too: in the hash of the row and in the last SELECT. Values that give the same pixels must become
   one value there, as guidance becomes `+ 0.0` and never `-0.0`, or one image has two ids.
4. Refuse invalid values in `steps/plan/rules.py`: by `_bounds_rule` if it has `bounds`, by a rule
   of its own otherwise, and by another where the model has no use for it. Which families have is
   said in `steps/models/families.py`; the job's own default is checked in
   `steps/models/compatibility.py`.
5. Add it, None by default, to `ImageParameters` (`steps/runs/image.py`) and `ImageSpec`
   (`steps/checks.py`) and, if it is in the shape, to `BatchShape`, `batch_shape` and the planner's
   `ImageGroup` (`steps/plan/catalog.py`). If it changes the time that an image takes, count it in
   `work_per_image` (`steps/plan/sharding.py`).
6. If its values repeat, list it in `DICTIONARY_COLUMNS` (`steps/runs/tables.py`). If web UIs have a
   name for it, write it in `steps/runs/webui_text.py`.
7. Pass it to the pipeline in `PipelineInputs` of `steps/generate/diffusion/pipeline_inputs.py`, or
   in `variants.py` beside it if it belongs to input images. If it changes how texts are encoded,
   pass it through `text_encoding.py` as well, and make it part of the key of `TextCache`. If it is
   in the shape and does not change compiled code, give it one value for all in `_code_key`
   (`compile.py`).
8. Describe it in `docs/job.md`, `docs/quality.md`, `docs/metadata.md` and, if it decides pixels,
   in `docs/guarantees.md` and `docs/models.md`. Warn in `CHANGELOG.md`: an input that already has a
   column of this name now counts, `carry` refuses the name, and derived run ids change with any
   new setting.

`tests/steps/job/test_columns.py` finds most of what was forgotten in steps 2 and 5,
`tests/steps/plan/test_rules.py` a missing rule for `bounds`.
"""

from dataclasses import dataclass
from typing import Literal

ColumnKind = Literal["text", "integer", "number", "image"]
# Whether a column is part of an image's id: always, only where it has a value, or not at all.
Identity = Literal["always", "optional", "never"]

MAX_IMAGES_PER_ROW = 10_000
MAX_SEED = 2**63 - 1
MAX_SIDE = 65_536  # pixels


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and the largest value that a row may have."""

    lowest: int
    highest: int


STEPS = Bounds(1, 1000)
GUIDANCE = Bounds(0, 100)
IMAGES_PER_ROW = Bounds(1, MAX_IMAGES_PER_ROW)
SEED = Bounds(0, MAX_SEED - MAX_IMAGES_PER_ROW)  # seed + image index must not exceed MAX_SEED


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a prompt row.

    `in_shape`: all images of a batch have the same value. `bounds`: the accepted range, if
    it does not depend on the job.
    """

    name: str
    kind: ColumnKind
    identity: Identity = "always"
    in_shape: bool = False
    bounds: Bounds | None = None


# In the order in which image rows list them, and in which unreadable values are reported.
PROMPT_COLUMNS = (
    Column("prompt", "text"),
    Column("id", "text", identity="never"),
    Column("negative_prompt", "text"),
    Column("seed", "integer", bounds=SEED),
    Column("width", "integer", in_shape=True),
    Column("height", "integer", in_shape=True),
    Column("steps", "integer", in_shape=True, bounds=STEPS),
    Column("images", "integer", identity="never", bounds=IMAGES_PER_ROW),
    Column("guidance", "number", in_shape=True, bounds=GUIDANCE),
    Column("sampler", "text", in_shape=True),
    Column("loras", "text", identity="optional", in_shape=True),
    Column("strength", "number", identity="optional", in_shape=True),
    Column("source_image", "image", identity="optional"),
    Column("mask_image", "image", identity="optional"),
    Column("control_image", "image", identity="optional"),
    Column("reference_image", "image", identity="optional"),
)
# What decides an image's pixels, with its model.
IDENTITY_COLUMNS = tuple(column for column in PROMPT_COLUMNS if column.identity != "never")
OPTIONAL_IDENTITY_COLUMNS = tuple(
    column.name for column in PROMPT_COLUMNS if column.identity == "optional"
)
# Images of the input that condition an image: what it starts from, where it is redrawn, what
# guides it.
INPUT_IMAGE_COLUMNS = tuple(column.name for column in PROMPT_COLUMNS if column.kind == "image")
