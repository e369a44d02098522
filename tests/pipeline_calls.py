"""What the calls of diffusers' pipelines take by themselves, read from the installed diffusers.

Planning has no diffusers: it reads `steps/models/pipeline_calls.json`, which only
`make pipeline-calls` writes. A test compares the two.
"""

import inspect
import json
import re
from pathlib import Path

import diffusers

from imagekiln.steps.job.columns import MAX_REFERENCES
from imagekiln.steps.models.families import FAMILIES, unsupported_reason

FILE = Path(__file__).parents[1] / "steps" / "models" / "pipeline_calls.json"
GUIDANCE_ARGUMENTS = ("guidance_scale", "true_cfg_scale", "distilled_guidance_scale")
TRUE_CFG = "true_cfg_scale"
IMAGE_ARGUMENTS = ("image", "images", "input_images")
NEEDS_IMAGES = re.compile("Edit|I2I|Pix2Pix")
# As the code of their calls says. In the others, a list is a batch, or refused.
SEVERAL_IMAGES = {
    *("Flux2Pipeline", "Flux2KleinPipeline", "Flux2KleinKVPipeline", "GlmImagePipeline"),
    *("JoyImageEditPlusPipeline", "OmniGenPipeline", "QwenImage21Pipeline"),
    *("QwenImageEditPlusPipeline", "ZImageOmniPipeline"),
}
# A picture to fill, to describe, or to vary.
READ_OTHER_IMAGES = {"FluxFillPipeline", "StableCascadeCombinedPipeline", "UniDiffuserPipeline"}
GUIDED_ABOVE = re.compile(r"guidance_scale > ([0-9.]+)")


def pipeline_calls() -> str:
    """The file's content: a line for each class that draws from a text."""
    lines = []
    for name in sorted(dir(diffusers)):
        pipeline = getattr(diffusers, name)
        if not isinstance(pipeline, type) or not issubclass(pipeline, diffusers.DiffusionPipeline):
            continue
        if pipeline is not diffusers.DiffusionPipeline and not unsupported_reason(name):
            lines.append(f'  "{name}": {json.dumps(_call_of(pipeline))}')
    content = ",\n".join(lines)
    return f"{{\n{content}\n}}\n"


def _call_of(pipeline: type) -> dict[str, object]:
    """What differs from a call that takes no guidance and no images."""
    parameters = inspect.signature(pipeline.__call__).parameters
    defaults = {name: each.default for name, each in parameters.items()}
    argument = _guidance_argument(defaults)
    values: dict[str, object] = {"steps": defaults["num_inference_steps"]}
    values |= _images_of(pipeline.__name__, defaults)
    if argument is None:
        return values
    values["guidance_argument"] = argument
    values["guidance"] = defaults[argument]
    if "guidance_schedule" in defaults:
        values["schedule_steps"] = len(defaults["guidance_schedule"])
    family = FAMILIES.get(pipeline.__name__)
    if family is not None and not family.negative_embeds:
        return values
    if family is None and TRUE_CFG in defaults and argument != TRUE_CFG:
        return values  # a number that the model reads; negative prompts have a scale of their own
    values["guided_above"] = _guided_above(pipeline)
    values["takes_negative_prompt"] = family is not None or "negative_prompt" in defaults
    if "guidance_rescale" in defaults:
        values["rescales_guidance"] = True
    return values


def _images_of(name: str, defaults: dict[str, object]) -> dict[str, object]:
    """The reference images that a pipeline takes. Many take lists, and few as one image's."""
    if name in READ_OTHER_IMAGES:
        return {}
    for argument in IMAGE_ARGUMENTS:
        if argument in defaults:
            values: dict[str, object] = {"images_argument": argument}
            if name in SEVERAL_IMAGES:
                values["max_images"] = MAX_REFERENCES
            if NEEDS_IMAGES.search(name):
                values["needs_images"] = True
            if "width" not in defaults and "Pix2Pix" not in name:  # whose size is the image's
                values["takes_size"] = False
            return values
    return {}


def _guidance_argument(defaults: dict[str, object]) -> str | None:
    """The argument that decides: the first with a number, or else one beside a schedule.

    One that is None otherwise has no effect.
    """
    for name in GUIDANCE_ARGUMENTS:
        if defaults.get(name) is not None:
            return name
    return "guidance_scale" if "guidance_schedule" in defaults else None


def _guided_above(pipeline: type) -> float:
    """The number above which the denoiser runs twice a step, by the source; mostly 1."""
    enabled = getattr(pipeline, "do_classifier_free_guidance", None)
    if not isinstance(enabled, property) or enabled.fget is None:
        return 1.0
    numbers = GUIDED_ABOVE.findall(inspect.getsource(enabled.fget))
    return float(numbers[0]) if numbers else 1.0


if __name__ == "__main__":
    FILE.write_text(pipeline_calls(), encoding="utf-8")
