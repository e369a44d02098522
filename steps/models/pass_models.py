"""The diffusion models that passes draw with in place of the job's own.

Each is the model of a job that is derived from the user's, so that it is resolved, fetched and
loaded as any other.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from imagekiln.steps.errors import in_setting
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import Job, ModelSettings, RowDefaults
from imagekiln.steps.job.passes import AnyPass, RefinePass
from imagekiln.steps.models.compatibility import require_pipeline_support
from imagekiln.steps.models.facts import ModelFacts, locate_model
from imagekiln.steps.models.image_defaults import default_guidance, default_steps
from imagekiln.steps.models.passes import PASSES_PREFIX
from imagekiln.steps.models.single_file import configuration_reference


def iter_pass_jobs(job: Job) -> Iterator[tuple[str, Job]]:
    """The passes that draw with a model of their own, by name, each as a job with that model.

    Such a job has no adapters and no LoRAs: those of the job belong to the job's own model.
    """
    for name, settings in job.passes.items():
        if isinstance(settings, RefinePass) and settings.model is not None:
            model = ModelSettings.model_validate(settings.model.model_dump())
            update = {
                "model": model,
                "defaults": _pass_defaults(job.defaults, settings),
                "passes": {},
                "scores": {},
                "keep": None,
            }
            yield name, job.model_copy(update=update)


def pass_setting(name: str, settings: AnyPass) -> str:
    """The path of the setting that names the files of a pass's model."""
    has_own = isinstance(settings, RefinePass)
    return f"{PASSES_PREFIX}{name}.model" if has_own else f"{PASSES_PREFIX}{name}"


def model_references(job: Job) -> Iterator[tuple[str, HubReference]]:
    """The diffusion models that passes draw with, by the path of the setting."""
    for name, pass_job in iter_pass_jobs(job):
        yield pass_setting(name, job.passes[name]), configuration_reference(pass_job.model)


def pin_passes(passes: Mapping[str, AnyPass], commits: Mapping[str, str]) -> dict[str, AnyPass]:
    """The passes with these commits as revisions, by the path of the setting."""
    pinned = dict(passes)
    for name, settings in passes.items():
        commit = commits.get(pass_setting(name, settings))
        if commit is None:
            continue
        update: dict[str, object] = {"revision": commit}
        if isinstance(settings, RefinePass) and settings.model is not None:
            update = {"model": settings.model.model_copy(update=update)}
        pinned[name] = settings.model_copy(update=update)
    return pinned


def load_pass_models(job: Job) -> dict[str, tuple[Path, ModelFacts]]:
    """Locate the model of each pass that has one of its own, by the pass's name.

    Raises BadInput if it is not what its pass needs, Missing, TryAgain.
    """
    models = {}
    for name, pass_job in iter_pass_jobs(job):
        with in_setting(f"{PASSES_PREFIX}{name}"):
            located = locate_model(pass_job.model, from_images=True)
            require_pipeline_support(pass_job, located[1].pipeline)
        models[name] = located
    return models


def fill_pass_settings(job: Job, models: Mapping[str, ModelFacts]) -> Job:
    """The job with the steps and guidance of passes' own models, if their passes set none."""
    passes = dict(job.passes)
    for name, pass_job in iter_pass_jobs(job):
        facts = models[name]
        update = {
            "steps": default_steps(pass_job, facts, f"{PASSES_PREFIX}{name}"),
            "guidance": default_guidance(pass_job, facts),
        }
        passes[name] = passes[name].model_copy(update=update)
    return job.model_copy(update={"passes": passes})


def _pass_defaults(defaults: RowDefaults, settings: RefinePass) -> RowDefaults:
    """Defaults of the pass for a row that sets nothing."""
    update = {
        "steps": settings.steps,
        "guidance": settings.guidance,
        "sampler": settings.sampler or defaults.sampler,
        "loras": "",
    }
    return defaults.model_copy(update=update)
