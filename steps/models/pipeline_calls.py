"""What the calls of diffusers' pipelines take, as a table: planning runs without diffusers.

`make pipeline-calls` writes it, and a test holds it to the installed diffusers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from imagekiln.steps.models.families import text_to_image_class

TABLE = Path(__file__).with_name("pipeline_calls.json")


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """The defaults of a pipeline's call, and how it takes guidance.

    `guidance_argument` is None where it takes none. Without a default for it, the pipeline has a
    schedule of its own for `schedule_steps` steps. Above `guided_above` the denoiser runs twice a
    step; None: it never does, and no negative prompt has an effect.
    """

    steps: int
    guidance_argument: str | None = None
    guidance: float | None = None
    schedule_steps: int | None = None
    guided_above: float | None = None
    takes_negative_prompt: bool = False


UNKNOWN_CALL = PipelineCall(0, "guidance_scale")


def call_of(pipeline: str) -> PipelineCall | None:
    """The call of a pipeline, by the name of its class; None where the table has no such class."""
    return _read_table().get(text_to_image_class(pipeline))


@cache
def _read_table() -> Mapping[str, PipelineCall]:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: PipelineCall(**values) for name, values in table.items()}
