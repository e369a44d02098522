"""What a denoiser drew before an image, and whether the image shows it.

A planned run has a model with everything that its family takes: LoRAs, a ControlNet, an IP-Adapter.
Its variants are image rows that each differ from a plain one in a single setting. What a variant
becomes in a new denoiser is compared with what it becomes after any other.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, permutations
from pathlib import Path
from typing import TypeVar

import diffusers
import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser, load_denoiser
from imagekiln.steps.generate.diffusion.patches import lora_components
from imagekiln.steps.generate.recovery import BatchRecovery
from imagekiln.steps.job.samplers import SAMPLERS, SCHEDULERS
from imagekiln.steps.models.families import variants_of
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.keys import input_image_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import adapters, families, loras, models, plain
from tests.pictures import half, noise
from tests.runs import image_row, planned

T = TypeVar("T")
Variants = Mapping[str, ImageRow]
# The pixels of an image, or why there are none.
Outcome = bytes | str

IP_ADAPTERS: Mapping[str, Callable[[], Path]] = {
    "sd": lambda: adapters.ip_adapter("sd"),
    "sdxl": lambda: adapters.ip_adapter("sdxl"),
    "sd3": adapters.sd3_ip_adapter,
    "flux": adapters.flux_ip_adapter,
}
CONTROLNETS: Mapping[str, adapters.Controlled] = {
    "sd": "sd",
    "sdxl": "sdxl",
    "flux": "flux",
    "sd3-control": "sd3",  # has two layers, and the IP-Adapter of "sd3" is for one
}
STABLE_DIFFUSION = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
# Models that come with other schedulers than those of `tests.families`, as real ones do.
OWN_SCHEDULERS: Mapping[str, models.Untyped] = {
    "sd with pndm": diffusers.PNDMScheduler(
        **STABLE_DIFFUSION, skip_prk_steps=True, set_alpha_to_one=False, steps_offset=1
    ),
    "sd with euler": diffusers.EulerDiscreteScheduler(**STABLE_DIFFUSION, steps_offset=1),
    "sd with dpmpp_sde": diffusers.DPMSolverSinglestepScheduler(
        **STABLE_DIFFUSION, final_sigmas_type="sigma_min"
    ),
    "sdxl with dpmpp": diffusers.DPMSolverMultistepScheduler(
        **STABLE_DIFFUSION, use_karras_sigmas=True, final_sigmas_type="sigma_min"
    ),
    "sdxl with unipc": diffusers.UniPCMultistepScheduler(**STABLE_DIFFUSION),
    "sana with dpmpp": diffusers.DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    ),
    "sd3 with shifts": families.flow(use_dynamic_shifting=False, shift=3.0),
    "flux with shifts": families.flow(use_dynamic_shifting=True, shift=3.0, max_shift=1.15),
}
LORA_SETS = (None, "a:0.8", "b:-0.5", "a:0.8,b:-0.5", "a:-0.5,b:0.8")
SOURCE, MASK, CONTROL, REFERENCE = noise(1), half(), noise(2), noise(3)
STEPS = 4  # fewer are too few for PNDM


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A planned run of one model, which may be loaded any number of times."""

    kind: str
    store: Store
    plan: Plan

    def new_denoiser(self) -> Denoiser:
        """A denoiser that has drawn nothing."""
        return load_denoiser(self.plan, self.store, code=False)

    def row(self, **settings: object) -> ImageRow:
        """The plain row of the model, with other settings."""
        side = side_of(self.kind)
        plain_settings = {"width": side, "height": side, "steps": STEPS}
        return image_row(**{**plain_settings, **settings})  # type: ignore[arg-type]  # names of settings


def plan_model(folder: Path, kind: str, dtype: str = "float32") -> PlannedModel:
    """Plan a run of a kind of model with the LoRAs and adapters that it takes."""
    side = side_of(kind)
    rows = [{"prompt": "a red circle", "width": side, "height": side}]
    run = planned(folder, str(folder / "out"), rows, model=model_settings(kind, dtype))
    store = open_store(run.uri)
    for content in (SOURCE, MASK, CONTROL, REFERENCE):
        store.create(input_image_key(sha256(content)), content)
    return PlannedModel(kind, store, run.plan)


def model_settings(kind: str, dtype: str = "float32") -> dict[str, object]:
    """The model of a job, of one kind, with the LoRAs and adapters that it takes."""
    settings: dict[str, object] = {"id": str(model_folder(kind)), "dtype": dtype}
    if supports_loras(kind):
        settings["loras"] = {
            name: {"id": str(loras.folder(kind, seed, text=name == "a" and has_clip(kind)))}
            for seed, name in enumerate("ab", start=1)
        }
    if kind in CONTROLNETS:
        settings["controlnet"] = {"id": str(adapters.controlnet(CONTROLNETS[kind])), "scale": 0.7}
    if kind in IP_ADAPTERS:
        settings["ip_adapter"] = {
            "id": str(IP_ADAPTERS[kind]()),
            "weight_name": "adapter.safetensors",
            "scale": 0.8,
        }
    return settings


@cache
def model_folder(kind: str) -> Path:
    """The saved model of a kind."""
    if kind in OWN_SCHEDULERS:
        return models.saved(kind, partial(_with_scheduler, kind))
    if kind == "sd3-control":
        return adapters.model("sd3")
    if kind in plain.MAKE:
        return plain.folder(kind)
    return families.folder(kind)


def _with_scheduler(kind: str) -> models.Untyped:
    pipe = families.pipe(kind.partition(" ")[0])
    pipe.scheduler = OWN_SCHEDULERS[kind]
    return pipe


def side_of(kind: str) -> int:
    """The smallest side that a kind of model draws, in pixels."""
    if kind in plain.MAKE:
        return 2 * models.SIDE
    return families.SIDES.get(kind.partition(" ")[0], models.SIDE)


def sha256(content: bytes) -> str:
    """The hash by which a row names an input image."""
    return hashlib.sha256(content).hexdigest()


@cache
def supports_loras(kind: str) -> bool:
    """Whether a kind of model has components that LoRAs change."""
    return kind in families.MAKE and bool(lora_components(families.pipe(kind)))


@cache
def has_clip(kind: str) -> bool:
    """Whether the text encoder that LoRAs change is one of CLIP's."""
    components = lora_components(families.pipe(kind))
    return "CLIP" in type(components.get("text_encoder")).__name__


# --- Histories ------------------------------------------------------------------------------------


def changed_by_history(
    model: PlannedModel, variants: Variants, *, interrupted: bool = False, all_pairs: bool = True
) -> list[str]:
    """The variants that become something else in one denoiser than alone, and after which one.

    One denoiser draws every variant directly after every other and after itself, or, if not
    `all_pairs`, after two others. If `interrupted`, memory runs out in the middle of each one,
    before the next.
    """
    names = [*variants]
    sequence = sequence_of_all_pairs(names) if all_pairs else [*names, *reversed(names)]
    alone = {name: outcome_of(model.new_denoiser(), row) for name, row in variants.items()}
    require_pixels(alone)
    denoiser = model.new_denoiser()
    changed = []
    for before, name in pairwise(["", *sequence]):
        if interrupted and before:
            run_out_of_memory(denoiser, variants[before])
        if outcome_of(denoiser, variants[name]) != alone[name]:
            changed.append(f"{name} after {before}")
    return changed


def changed_in_new_denoisers(model: PlannedModel, variants: Variants) -> list[str]:
    """The variants that become something else than alone where a denoiser begins with another.

    For every two variants, a new denoiser draws the one, the other, and the one again. What is
    loaded or made on first use is then made after each variant in turn.
    """
    alone = {name: outcome_of(model.new_denoiser(), row) for name, row in variants.items()}
    require_pixels(alone)
    changed = []
    for first, second in permutations(variants, 2):
        denoiser = model.new_denoiser()
        drawn = [outcome_of(denoiser, variants[name]) for name in (first, second, first)]
        if drawn != [alone[first], alone[second], alone[first]]:
            changed.append(f"{first}, {second}, {first}")
    return changed


def sequence_of_all_pairs(items: Sequence[T]) -> list[T]:
    """An order in which each item follows each other, and itself, exactly once.

    A de Bruijn sequence: the Lyndon words of one and two letters, in the order of a dictionary.
    """
    sequence: list[T] = []
    for position, first in enumerate(items):
        sequence.append(first)
        for second in items[position + 1 :]:
            sequence += [first, second]
    return [*sequence, items[0]]


def outcome_of(denoiser: Denoiser, row: ImageRow) -> Outcome:
    """What a row becomes in a batch of its own."""
    recovery = BatchRecovery(partial(denoiser.draw, check=lambda: None), lambda _: 1)
    (image,) = recovery.draw_prefix([row])
    return outcome(image)


def outcome(image: DrawnImage) -> Outcome:
    """The pixels of an image, or why there are none."""
    if image.rgb is None:
        return f"{image.status}: {image.error}"
    return image.rgb.tobytes()


def run_out_of_memory(denoiser: Denoiser, row: ImageRow) -> None:
    """Draw a row until memory runs out after its first step."""

    def run_out() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with suppress(torch.OutOfMemoryError, ValueError):  # a sampler may not fit the model
        denoiser.draw([row], 1, run_out)


def require_pixels(alone: Mapping[str, Outcome]) -> None:
    """Fail where a variant has no pixels, unless it is a sampler, which may not fit the model."""
    failures = {name: text for name, text in alone.items() if isinstance(text, str)}
    unexpected = {name: text for name, text in failures.items() if name not in SCHEDULERS}
    assert unexpected == {}, unexpected
    assert len(set(alone.values())) > 1, "no variant changes a pixel"


# --- Variants of a row ----------------------------------------------------------------------------


def sampler_variants(model: PlannedModel) -> Variants:
    """Every sampler, those included that do not fit the model."""
    return {sampler: model.row(sampler=sampler) for sampler in SAMPLERS}


def lora_variants(model: PlannedModel) -> Variants:
    """No LoRA, each of two, both, and both in other weights."""
    if not model.plan.loras:
        return {}
    return {str(text): model.row(loras=text, negative_prompt="large") for text in LORA_SETS}


def size_variants(model: PlannedModel) -> Variants:
    """A square, and twice as wide and as high."""
    side = side_of(model.kind)
    sizes = [(side, side), (2 * side, side), (side, 2 * side)]
    return {f"{width}x{height}": model.row(width=width, height=height) for width, height in sizes}


def guidance_variants(model: PlannedModel) -> Variants:
    """No guidance, and two strengths of it, with and without a negative prompt."""
    variants = {
        f"guidance {guidance}": model.row(guidance=guidance) for guidance in (0.0, 3.0, 7.5)
    }
    return variants | {"negative prompt": model.row(guidance=7.5, negative_prompt="large")}


def step_variants(model: PlannedModel) -> Variants:
    """Even and odd numbers of steps."""
    return {f"{steps} steps": model.row(steps=steps) for steps in (STEPS, STEPS + 1)}


def input_image_variants(model: PlannedModel) -> Variants:
    """Every combination of input images that the model takes."""
    return {
        "+".join(images) or "text alone": model.row(**images)
        for images in input_image_settings(model)
    }


def input_image_settings(model: PlannedModel) -> list[dict[str, object]]:
    """The settings of a row for every combination of input images that the model takes."""
    family = variants_of(model.plan.model.pipeline)
    source: dict[str, object] = {"source_image": sha256(SOURCE), "strength": 0.6}
    mask: dict[str, object] = {**source, "mask_image": sha256(MASK)}
    control: dict[str, object] = {"control_image": sha256(CONTROL)}
    reference: dict[str, object] = {"reference_image": sha256(REFERENCE)}

    settings: list[dict[str, object]] = [{}]
    if family.image_to_image:
        settings += [source, source | {"strength": 1.0}]
    if family.inpaint:
        settings.append(mask)
    if "control_image" in model.plan.adapters:
        settings.append(control)
        if _controls_sources(model):
            settings += [control | source, control | mask]
    if "reference_image" in model.plan.adapters:
        settings += [reference, reference | source, reference | mask]
    return settings


def _controls_sources(model: PlannedModel) -> bool:
    """Whether a row of the model may have a control image and a source image at once."""
    family = variants_of(model.plan.model.pipeline)
    if "reference_image" in model.plan.adapters and not family.control_source_and_reference:
        return False
    return family.control_with_source


def quick_variants(model: PlannedModel) -> Variants:
    """A few variants of each sort: what a default test has time for."""
    side = side_of(model.kind)
    settings: dict[str, dict[str, object]] = {
        "plain": {},
        "wide": {"width": 2 * side},
        "unguided": {"guidance": 0.0},
        "more steps": {"steps": STEPS + 1},
    }
    if model.plan.loras:
        settings |= {text: {"loras": text} for text in ("a:0.8", "a:-0.5,b:0.8")}
    images = input_image_settings(model)
    settings |= {"+".join(each): each for each in images if len(each) == 1 or "mask_image" in each}
    return {name: model.row(**each) for name, each in settings.items()}


def all_variants(model: PlannedModel) -> Variants:
    """Every variant of every sort, each row once."""
    variants = {
        **sampler_variants(model),
        **lora_variants(model),
        **size_variants(model),
        **guidance_variants(model),
        **step_variants(model),
        **input_image_variants(model),
    }
    names = {row: name for name, row in reversed(variants.items())}
    return {name: row for name, row in variants.items() if names[row] == name}


def sampler_and_image_variants(model: PlannedModel, samplers: Sequence[str]) -> Variants:
    """These samplers for images from text, in odd numbers of steps too, and from images."""
    images: dict[str, dict[str, object]] = {
        "from text": {},
        "in odd steps": {"steps": STEPS + 1},
        "from an image": {"source_image": sha256(SOURCE), "strength": 1.0},
        "within a mask": {
            "source_image": sha256(SOURCE),
            "strength": 1.0,
            "mask_image": sha256(MASK),
        },
    }
    return {
        f"{sampler} {name}": model.row(sampler=sampler, **each)
        for sampler in samplers
        for name, each in images.items()
    }
