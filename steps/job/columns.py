"""The columns of a prompt row: what each holds, what it decides, and which values are accepted.

To add a column:

1. List it at the end of `PROMPT_COLUMNS`.
   - `identity`: `optional` if it decides pixels. Rows without a value then keep their image ids;
     `always` would change every id.
   - `in_shape`: True if all images of a batch must share the value: the call takes one, or, like
     `loras`, what encodes the batch's texts must be set for it. False splits no batches, but a
     setting of the texts then needs `uncached_texts` per row (step 7). If False, skip what is said
     below about the shape.
2. Add it to `ColumnNames` (`steps/job/job.py`) and, if a job may set a default, to `RowDefaults`
   beside it. Let that default be None: any other gives every row a value, and so every image
   another id. Give both fields `exclude_if` for their default, as `ModelSettings.variant` has:
   the run ids of existing jobs, which hash all settings, then stay. `PLAN_SCHEMA_VERSION`
   stays, too.
3. Select it in `_filled_sql` (`steps/plan/image_sql.py`), with the job's default (NULL in SQL where
   that is None). Make values that give the same pixels one value there (guidance adds 0.0, so that
   -0.0 becomes 0.0), or in `steps/plan/derived_columns.py` if SQL cannot: otherwise one image has
   two ids.
4. Reject invalid values in `steps/plan/rules.py`: by `_bounds_rule` if it has `bounds`, by a rule
   of its own otherwise, and by another rule where the model has no use for it. Which families have
   is said in `steps/models/families.py`. Of the job's default, whether the model takes it is
   checked in `steps/models/compatibility.py`, its value by `_check_defaults` in
   `steps/plan/rules.py`.
5. Add it, None by default, to `ImageParameters` (`steps/runs/image.py`) and `ImageSpec`
   (`steps/checks.py`) and, if it is in the shape, to `BatchShape` and `batch_shape`
   (`steps/runs/image.py`) and to the planner's `ImageGroup` (`steps/plan/catalog.py`). If it has a
   default, pass that in `_default_shape` (`steps/generate/diffusion/denoiser.py`) and
   `_image_parameters` (`steps/generate/tune.py`). If it changes the time that an image takes, count
   it in `work_per_image` (`steps/plan/sharding.py`).
6. If its values repeat, list it in `DICTIONARY_COLUMNS` (`steps/runs/tables.py`). If web UIs have a
   name for it, write it in `steps/runs/webui_text.py`.
7. Pass it to the pipeline.
   - In `settings_kwargs` of `PipelineInputs` (`steps/generate/diffusion/pipeline_inputs.py`), or in
     `steps/generate/diffusion/variants.py` if it belongs to input images.
   - If it changes texts, known families encode them before the call, so `settings_kwargs` has no
     effect. Pass it through `uncached_texts` and `text_kwargs` of `PipelineInputs`, and through
     `TextRequest`, `TextCache` (as part of its key) and `PromptEncoder`
     (`steps/generate/diffusion/text_encoding.py`); for unknown families through
     `_plain_text_kwargs`. Decide whether negative prompts take it, too.
   - If it is in the shape and does not change compiled code, give it one value for all in
     `code_shape` (`steps/generate/diffusion/compile.py`).
8. Test it. `_random_rows` and `test_every_setting_changes_the_id` in
   `tests/steps/plan/test_image_sql.py` list values by hand; `all_variants` in `tests/histories.py`
   has what must leave no trace in a model.
9. Describe it in `docs/job.md`, `docs/quality.md`, `docs/metadata.md`, `docs/dataset.md` and, if it
   decides pixels, in `docs/guarantees.md` and `docs/models.md`. Warn in `CHANGELOG.md`: an input
   that already has a column of this name now counts, `carry` refuses the name, and so do the plans
   of runs that carried it.

`tests/steps/job/test_columns.py` finds most of what was forgotten in steps 2 and 5,
`tests/steps/plan/test_rules.py` a missing rule for `bounds`, `tests/package/test_docs.py` a column
that is missing in `docs/dataset.md`.
"""

from dataclasses import dataclass
from typing import Literal

ColumnKind = Literal["text", "integer", "number", "image"]
# Whether a column is part of an image's id: always, only where it has a value, or not at all.
Identity = Literal["always", "optional", "never"]

MAX_IMAGES_PER_ROW = 10_000
MAX_SEED = 2**63 - 1
MAX_SIDE = 65_536  # pixels
MAX_IMAGE_PIXELS = 4096 * 4096
MAX_PROMPT_CHARS = 4000


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
