"""Call signatures of diffusers' pipelines, as a table: planning runs without diffusers.

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
class CallSignature:
    """The defaults of a pipeline's call, and what it reads of guidance and negative prompts.

    `guidance_argument` is None if it reads no guidance. Without a default for it, the pipeline
    has a schedule of its own, for `schedule_steps` steps. Above `guided_above`, the denoiser runs
    twice a step; None: it never does. Up to there, a negative prompt has no effect.
    """

    steps: int = 0
    guidance_argument: str | None = None
    guidance: float | None = None
    schedule_steps: int | None = None
    guided_above: float | None = None
    takes_negative_prompt: bool = False

    def is_guided(self, guidance: float | None) -> bool:
        """Return whether the denoiser runs twice a step at this guidance."""
        if guidance is None:
            return self.schedule_steps is not None
        return self.guided_above is not None and guidance > self.guided_above


# Of a class that the table lacks: what it reads turns out when it draws.
UNKNOWN_CALL = CallSignature(guidance_argument="guidance_scale", takes_negative_prompt=True)


def known_call_of(pipeline: str) -> CallSignature:
    """The call of a pipeline, by the name of its class."""
    return _read_table().get(text_to_image_class(pipeline), UNKNOWN_CALL)


@cache
def _read_table() -> Mapping[str, CallSignature]:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: CallSignature(**values) for name, values in table.items()}
