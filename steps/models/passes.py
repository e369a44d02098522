"""The models of a job's passes, the image sizes after them, and their part of image ids."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.main import IncEx

from imagekiln.steps.errors import BadInput, in_setting
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.job.passes import (
    MAX_SCALE,
    AnyModelPass,
    AnyPass,
    RefinePass,
    UpscalePass,
    alters_pixels,
)
from imagekiln.steps.models.component_files import Config, weights_digest
from imagekiln.steps.models.facts import ModelFacts, default_guidance, default_steps, locate_model
from imagekiln.steps.models.families import family_of, require_pipeline_support
from imagekiln.steps.models.own_settings import NO_GUIDANCE
from imagekiln.steps.models.placement import WeightSizes
from imagekiln.steps.models.transformers_models import require_model

PASSES_PREFIX = "passes."
# Settings that name the files of a pass's model. Image ids depend on the files' digest instead.
FILE_SETTINGS: dict[str, IncEx | bool] = {
    "id": True,
    "revision": True,
    "model": {"id": True, "revision": True, "config": True, "variant": True},
}
Size = tuple[int, int]


def _is_none(model: ModelFacts | None) -> bool:
    return model is None


@dataclass(frozen=True, slots=True)
class PassFacts:
    """The digest of a pass's model, and the factor by which it enlarges an image.

    `model` has the facts of a refine pass's own diffusion model.
    """

    digest: str
    scale: Annotated[int, Field(ge=1, le=MAX_SCALE)] = 1
    model: Annotated[ModelFacts | None, Field(exclude_if=_is_none)] = None


def list_weights(
    job: Job, facts: ModelFacts, passes: Mapping[str, PassFacts]
) -> tuple[WeightSizes, ...]:
    """List the sizes of the weights of a job's diffusion models, as far as they are known."""
    models = [facts, *(each.model for each in passes.values() if each.model is not None)]
    sizes = [model.weights for model in models if model.weights is not None]
    is_quantized = job.speed.quantization != "none"  # nvfp4 takes less than fp8
    return tuple(each.in_fp8() if is_quantized else each for each in sizes)


@dataclass(frozen=True, slots=True)
class PassSizes:
    """The image sizes in pixels after the passes of a job, by the facts of their models.

    The job's own model needs sizes that are multiples of `multiple`. Passes run on the `share` of
    images that is kept.
    """

    passes: Mapping[str, AnyPass]
    facts: Mapping[str, PassFacts]
    multiple: int
    share: float = 1.0

    @classmethod
    def of(cls, job: Job, facts: Mapping[str, PassFacts], multiple: int) -> "PassSizes":
        """Create the sizes of a job with these facts."""
        return cls(job.passes, facts, multiple, 1 / job.candidates)

    @property
    def alters_images(self) -> bool:
        """Return whether a pass changes pixels."""
        return any(map(alters_pixels, self.passes.values()))

    def sizes_by_pass(self, size: Size) -> list[Size]:
        """Return the size after each pass of an image that is generated in this size."""
        sizes = []
        for name, settings in self.passes.items():
            scale, multiple = self._resizing(name, settings)
            width, height = (_scale_side(side, scale, multiple) for side in size)
            size = width, height
            sizes.append(size)
        return sizes

    def final(self, size: Size) -> Size:
        """Return the stored size of an image that is generated in this size."""
        return [size, *self.sizes_by_pass(size)][-1]

    def work(self, size: Size, steps: int) -> float:
        """Return the mean cost of diffusion passes per generated image, in pixels times steps."""
        work = 0.0
        pairs = zip(self.passes.values(), self.sizes_by_pass(size), strict=True)
        for settings, (width, height) in pairs:
            if isinstance(settings, RefinePass):
                work += width * height * (settings.steps or steps) * settings.redrawn
        return work * self.share

    def final_side_sql(self, column: str) -> str:
        """Format the stored width or height in SQL, from the column of the generated one."""
        side = f"CAST({column} AS DOUBLE)"
        for name, settings in self.passes.items():
            scale, multiple = self._resizing(name, settings)
            multiples = f"floor({side} * {scale!r} / {multiple} + 0.5)"
            side = f"greatest({multiple}, {multiples} * {multiple})"
        return side

    def _resizing(self, name: str, settings: AnyPass) -> tuple[float, int]:
        """Return the factor by which a pass scales sides, and the multiple for its sizes."""
        facts = self.facts.get(name, NO_FACTS)
        if not isinstance(settings, RefinePass):
            return facts.scale, 1
        multiple = self.multiple if facts.model is None else facts.model.size_multiple
        return settings.scale or 1.0, multiple


NO_FACTS = PassFacts("")
NO_PASSES = PassSizes({}, {}, 1)


def _scale_side(side: int, scale: float, multiple: int) -> int:
    multiples = math.floor(side * scale / multiple + 0.5)
    return max(1, multiples) * multiple


def pass_references(job: Job) -> Iterator[tuple[str, HubReference]]:
    """Yield the transformers models of a job's passes, by the path of the setting."""
    for name, settings in job.passes.items():
        if isinstance(settings, AnyModelPass):
            yield f"{PASSES_PREFIX}{name}", settings


@dataclass(frozen=True, slots=True)
class ResolvedPasses:
    """The facts of the models of a job's passes, and the folders of the diffusion models.

    `settings` are the passes with steps and guidance filled in from their own models.
    """

    settings: Mapping[str, AnyPass]
    facts: dict[str, PassFacts]
    configurations: dict[str, Path]


def resolve_passes(job: Job, own: ModelFacts) -> ResolvedPasses:
    """Locate the models of passes. `own` are the facts of the job's own model.

    Raises BadInput if a model does not fit its pass, Missing, TryAgain.
    """
    passes: dict[str, AnyPass] = dict(job.passes)
    facts: dict[str, PassFacts] = {}
    configurations = {}
    for name, pass_job in iter_pass_jobs(job):
        setting = f"{PASSES_PREFIX}{name}"
        with in_setting(setting):
            configurations[name], model = locate_model(pass_job.model, from_images=True)
            require_pipeline_support(pass_job, model.pipeline, model.quantization)
        facts[name] = PassFacts(model.digest, model=model)
        update = {
            "steps": default_steps(pass_job, model, setting),
            "guidance": default_guidance(pass_job, model),
        }
        passes[name] = passes[name].model_copy(update=update)
    networks = {}
    for name, settings in passes.items():
        setting = f"{PASSES_PREFIX}{name}"
        if isinstance(settings, RefinePass):
            _require_refining(setting, settings, facts.get(name, NO_FACTS).model or own)
        else:
            config = require_model(setting, settings)
            scale = _read_scale(setting, settings, config)
            networks[name] = PassFacts(weights_digest(settings), scale)
    return ResolvedPasses(passes, networks | facts, configurations)


def _require_refining(setting: str, settings: RefinePass, model: ModelFacts) -> None:
    if settings.kind == "edit":
        if model.own.call.images_argument is None:
            raise BadInput(
                f"{setting}: {model.pipeline} takes no reference images, which a pass of the kind "
                "edit needs. Choose another model."
            )
        if not model.own.call.takes_size:
            raise BadInput(
                f"{setting}: {model.pipeline} draws in a size of its own, and a pass of the kind "
                "edit keeps the image's. Choose another model."
            )
    elif not family_of(model.pipeline).image_to_image:
        raise BadInput(
            f"{setting}: {model.pipeline} has no image-to-image mode, which a pass of the kind "
            "refine needs. Remove the pass, or choose another model."
        )
    if (settings.guidance or 0.0) > NO_GUIDANCE and not model.own.reads_guidance:
        raise BadInput(f"{setting}.guidance has no effect: this model reads none. Remove it.")


def pass_keys(job: Job, facts: Mapping[str, PassFacts]) -> Iterator[str]:
    """Yield each pass's part of every image id: its settings and the digest of its model."""
    for name, settings in job.passes.items():
        values = settings.model_dump(mode="json", exclude=FILE_SETTINGS, exclude_none=True)
        digest = facts[name].digest if name in facts else None
        content = [dict(sorted(values.items())), digest]
        yield f"pass:{json.dumps(content)}"


def _read_scale(setting: str, settings: AnyModelPass, config: Config) -> int:
    """Read the factor by which a model enlarges an image; 1 for a caption model."""
    scale = config.get("upscale", 2) if isinstance(settings, UpscalePass) else 1
    if type(scale) is not int or not 1 <= scale <= MAX_SCALE:
        raise BadInput(
            f"{setting}: {settings.id} enlarges by {str(scale)[:20]}, and 1 to {MAX_SCALE} are "
            "known. Choose another."
        )
    return scale


def iter_pass_jobs(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the passes with their own diffusion model, by name, each as a job with that model.

    Such a job has no adapters and no LoRAs, since the job's belong to its own model.
    """
    for name, settings in job.passes.items():
        if isinstance(settings, RefinePass) and settings.model is not None:
            defaults = {
                "steps": settings.steps,
                "guidance": settings.guidance,
                "sampler": settings.sampler or job.defaults.sampler,
                "loras": "",
            }
            update = {
                "model": ModelSettings.model_validate(settings.model.model_dump()),
                "defaults": job.defaults.model_copy(update=defaults),
                "passes": {},
                "scores": {},
                "keep": None,
            }
            yield name, job.model_copy(update=update)
