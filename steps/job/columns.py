"""Columns of a prompt row: their types, their bounds, and their role in image ids and batches.

To add a column, append it to `PROMPT_COLUMNS`. Set `identity` to `optional` if it changes pixels,
so that rows without a value keep their image ids. Set `in_shape` if all images of a batch must
share the value. Then follow `guidance_rescale` through: `steps/job/rows.py` (twice, with
`exclude_if`, to keep run ids), `steps/plan/image_sql.py`, `steps/plan/rules.py`, `ImageGroup`
(`steps/plan/catalog.py`), `ImageParameters` and `BatchShape` (`steps/runs/image.py`), `ImageSpec`
(`steps/checks.py`), `pipeline_inputs.py` and `code_shape` (`steps/generate/diffusion`), docs/job.md
and docs/dataset.md. What a pipeline takes is in `CallSignature` (`steps/models/families.py`), which
`make pipeline-calls` writes.

Its default must be None, since any other default changes the ids of all images. Reject values
without effect, and normalize values that generate the same pixels in SQL (-0.0 becomes 0.0), or one
image has two ids. `tests/steps/job/test_columns.py` and `tests/steps/plan/test_rules.py` find most
omissions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

ColumnKind = Literal["text", "integer", "number", "image", "images"]
# When a column is part of an image's id: always, only if it has a value, or never.
Identity = Literal["always", "optional", "never"]

MAX_IMAGES_PER_ROW = 10_000
MAX_SEED = 2**63 - 1
MAX_SIDE = 65_536  # pixels
MAX_IMAGE_PIXELS = 4096 * 4096
MAX_PROMPT_CHARS = 4000
MAX_REFERENCES = 10


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds of a column's values."""

    lowest: int
    highest: int


STEPS = Bounds(1, 1000)
GUIDANCE = Bounds(0, 100)
IMAGES_PER_ROW = Bounds(1, MAX_IMAGES_PER_ROW)
GUIDANCE_RESCALE = Bounds(0, 1)
SEED = Bounds(0, MAX_SEED - MAX_IMAGES_PER_ROW)  # seed + image index must not exceed MAX_SEED


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a prompt row.

    With `in_shape`, all images of a batch have the same value. `bounds` is the accepted range,
    unless it depends on the job.
    """

    name: str
    kind: ColumnKind
    identity: Identity = "always"
    in_shape: bool = False
    bounds: Bounds | None = None


# In the order of image rows, and of reports on unreadable values.
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
    Column("reference_images", "images", identity="optional"),
    Column(
        "guidance_rescale", "number", identity="optional", in_shape=True, bounds=GUIDANCE_RESCALE
    ),
)
# Columns that determine an image's pixels, together with its model.
IDENTITY_COLUMNS = tuple(column for column in PROMPT_COLUMNS if column.identity != "never")
OPTIONAL_IDENTITY_COLUMNS = tuple(
    column.name for column in PROMPT_COLUMNS if column.identity == "optional"
)
# Names of all columns of a dataset. Scores, captions and carried columns need other names.
RESERVED_COLUMNS = frozenset(
    {
        *("image_id", "id", "image_index", "input_row", "truncated", "shortcuts", "image"),
        *(column.name for column in IDENTITY_COLUMNS),
        *("drawn_width", "drawn_height", "run_id", "model", "model_revision", "created_at"),
        *("status", "error", "byte_size", "sha256", "pixels_sha256", "marks", "marks_reason"),
        *("contrast", "saturation", "phash", "part", "byte_offset", "near_duplicate_of"),
    }
)
# Prefix of a carried column whose name is reserved.
CARRIED_PREFIX = "input_"
# Columns of images that condition a generated image: source, mask, control and references.
INPUT_IMAGE_COLUMNS = tuple(
    column.name for column in PROMPT_COLUMNS if column.kind in ("image", "images")
)


def dataset_name(column: str) -> str:
    """Return the name of a carried column in the dataset."""
    return f"{CARRIED_PREFIX}{column}" if column.lower() in RESERVED_COLUMNS else column


# Samplers that a row may name.
Sampler = Literal[
    "default", "ddim", "ddpm", "deis", "dpmpp_2m", "dpmpp_2m_karras", "dpmpp_2m_sde", "dpmpp_sde",
    "euler", "euler_a", "flow_euler", "heun", "lcm", "pndm", "unipc",
]  # fmt: skip
SAMPLERS: tuple[str, ...] = get_args(Sampler)


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """A diffusers scheduler class with settings that override the model's, and its web UI name."""

    class_name: str
    webui_sampler: str
    webui_schedule: str | None = None
    config: Mapping[str, bool | str] = field(default_factory=dict)


# "default" has no entry, since it is the model's own scheduler.
SCHEDULERS: Mapping[str, SchedulerSpec] = {
    "ddim": SchedulerSpec("DDIMScheduler", "DDIM"),
    "ddpm": SchedulerSpec("DDPMScheduler", "DDPM"),
    "deis": SchedulerSpec("DEISMultistepScheduler", "DEIS"),
    "dpmpp_2m": SchedulerSpec("DPMSolverMultistepScheduler", "DPM++ 2M"),
    "dpmpp_2m_karras": SchedulerSpec(
        "DPMSolverMultistepScheduler",
        "DPM++ 2M",
        webui_schedule="Karras",
        config={"use_karras_sigmas": True},
    ),
    "dpmpp_2m_sde": SchedulerSpec(
        "DPMSolverMultistepScheduler",
        "DPM++ 2M SDE",
        config={"algorithm_type": "sde-dpmsolver++"},
    ),
    "dpmpp_sde": SchedulerSpec("DPMSolverSinglestepScheduler", "DPM++ SDE"),
    "euler": SchedulerSpec("EulerDiscreteScheduler", "Euler"),
    "euler_a": SchedulerSpec("EulerAncestralDiscreteScheduler", "Euler a"),
    "flow_euler": SchedulerSpec("FlowMatchEulerDiscreteScheduler", "Euler"),
    "heun": SchedulerSpec("HeunDiscreteScheduler", "Heun"),
    "lcm": SchedulerSpec("LCMScheduler", "LCM"),
    "pndm": SchedulerSpec("PNDMScheduler", "PLMS"),
    "unipc": SchedulerSpec("UniPCMultistepScheduler", "UniPC"),
}
