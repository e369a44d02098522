"""A job's model with its adapters and LoRAs, resolved once for each command."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.job.fields import HubReference, PipelineSettings
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.adapters import adapter_keys, adapters_by_column
from imagekiln.steps.models.checkpoints import configuration_reference
from imagekiln.steps.models.component_files import require_no_revision
from imagekiln.steps.models.facts import ModelFacts, locate_model
from imagekiln.steps.models.families import require_pipeline_support
from imagekiln.steps.models.hub import DEFAULT_REVISION, is_commit, is_hub_id, resolve_commit
from imagekiln.steps.models.loras import LoraFacts, load_lora_facts
from imagekiln.steps.models.passes import (
    PASSES_PREFIX,
    PassFacts,
    PassSizes,
    list_weights,
    pass_keys,
    pass_references,
    resolve_passes,
)
from imagekiln.steps.models.placement import WeightSizes
from imagekiln.steps.models.transformers_models import score_digests, score_references

LORA_SETTING_PREFIX = "model.loras."
SCORE_SETTING_PREFIX = "scores."
# Settings that enter image ids in another way, or not at all.
PARTIAL_PREFIXES = (LORA_SETTING_PREFIX, SCORE_SETTING_PREFIX, PASSES_PREFIX)


@dataclass(frozen=True, slots=True)
class NamedRevision:
    """A branch or tag that a job names, and its commit when the run was planned.

    `setting` refers to the repository `id`, such as model or model.loras.style.
    """

    setting: str
    id: str
    name: str
    commit: str


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A job's model, adapters, LoRAs, scores and passes, with the digests of their current files.

    `job` has commits in place of the branches and tags in `revisions`, and the steps and guidance
    of the passes' own models.
    `configuration` is a local folder with at least the model's small files. `adapters` are keyed by
    the column of input images that each one reads, `loras` by the names that rows use, and `scores`
    by the path of the setting. `passes` are keyed by name, as are `pass_configurations`, the
    folders of the passes' diffusion models.
    """

    job: Job
    facts: ModelFacts
    configuration: Path
    adapters: dict[str, str]
    loras: dict[str, LoraFacts]
    revisions: tuple[NamedRevision, ...] = ()
    scores: dict[str, str] = field(default_factory=dict)
    passes: dict[str, PassFacts] = field(default_factory=dict)
    pass_configurations: dict[str, Path] = field(default_factory=dict)

    @property
    def common_digest(self) -> str:
        """The digest of the files behind every image of the job: the model's and the adapters'."""
        return "|".join(
            digest
            for setting, digest in self._digests()
            if not setting.startswith(PARTIAL_PREFIXES)
        )

    @property
    def key_extras(self) -> tuple[str, ...]:
        """Other settings that change every image of the job: shortcuts and passes."""
        return (*model_key_extras(self.job.speed), *pass_keys(self.job, self.passes))

    @property
    def pass_sizes(self) -> PassSizes:
        """The image sizes after the job's passes."""
        return PassSizes.of(self.job, self.passes, self.facts.size_multiple)

    @property
    def weights(self) -> tuple[WeightSizes, ...]:
        """The sizes of the weights of the job's diffusion models, as far as they are known."""
        return list_weights(self.job, self.facts, self.passes)

    @property
    def fixed_digest(self) -> str:
        """The digest of the job's files, except those of a branch or tag.

        A run's id depends on the name of the branch or tag instead.
        """
        named = {revision.setting for revision in self.revisions}
        return "|".join(digest for setting, digest in self._digests() if setting not in named)

    def _digests(self) -> Iterator[tuple[str, str]]:
        """Yield each setting with its part of a digest."""
        yield "model", self.facts.digest
        settings = adapters_by_column(self.job.model)
        for column, key in sorted(self.adapters.items()):
            setting = settings[column].setting_path
            yield setting, f"{column}={key}"
        for name, lora in sorted(self.loras.items()):
            setting = f"{LORA_SETTING_PREFIX}{name}"
            yield setting, f"{name}={lora.sha256}"
        for setting, digest in self.scores.items():
            yield setting, f"{setting}={digest}"
        for name, facts in self.passes.items():
            setting = f"{PASSES_PREFIX}{name}"
            own = setting if facts.model is None else f"{setting}.model"
            yield own, f"{setting}={facts.digest}"


def resolve_model(job: Job, planned: Collection[NamedRevision] = ()) -> ResolvedModel:
    """Resolve the job's model, adapters and LoRAs, and check that they fit each other.

    Branches and tags in `planned`, from an existing plan, keep their commits. Raises BadInput,
    Missing, TryAgain.
    """
    job, revisions = pin_revisions(job, planned)
    configuration, facts = locate_model(job.model)
    require_pipeline_support(job, facts.pipeline, facts.quantization)
    passes = resolve_passes(job, facts)
    return ResolvedModel(
        job=job.model_copy(update={"passes": passes.settings}),
        facts=facts,
        configuration=configuration,
        adapters=adapter_keys(job.model, facts.pipeline),
        loras=load_lora_facts(job.model),
        revisions=revisions,
        scores=score_digests(job),
        passes=passes.facts,
        pass_configurations=passes.configurations,
    )


def pin_revisions(
    job: Job, planned: Collection[NamedRevision] = ()
) -> tuple[Job, tuple[NamedRevision, ...]]:
    """Replace branches, tags and omitted revisions by commits; return the replaced names too.

    Those in `planned`, from an existing plan, keep their commits. Others are resolved by the hub.
    Raises BadInput, Missing, TryAgain.
    """
    commits = {(named.setting, named.id, named.name): named.commit for named in planned}
    revisions: list[NamedRevision] = []
    for setting, reference in iter_references(job):
        if isinstance(reference, PipelineSettings):
            reference = configuration_reference(reference)
        if not is_hub_id(reference.id):
            require_no_revision(setting, reference)
        elif not is_commit(reference.revision):
            name = reference.revision or DEFAULT_REVISION
            key = (setting, reference.id, name)
            commit = commits.get(key) or resolve_commit(reference, setting)
            revisions.append(NamedRevision(setting, reference.id, name, commit))
    for named in revisions:
        # The last part, a LoRA's name, may contain dots.
        job = _with_commit(job, named.setting.split(".", 2), named.commit)
    return job, tuple(revisions)


def iter_references(job: Job) -> Iterator[tuple[str, HubReference]]:
    """Yield the models of a job, its adapters, LoRAs, scores and passes, by setting path."""
    yield "model", job.model
    for adapter in (job.model.controlnet, job.model.ip_adapter):
        if adapter is not None:
            yield adapter.setting_path, adapter
    for name, lora in sorted(job.model.loras.items()):
        yield f"{LORA_SETTING_PREFIX}{name}", lora
    yield from score_references(job)
    yield from pass_references(job)
    for name, model in job.pass_models.items():
        yield f"{PASSES_PREFIX}{name}.model", model


def _with_commit(settings: Any, path: Sequence[str], commit: str) -> Any:  # noqa: ANN401  # a job, or a part of it
    """Copy the settings with a commit as the revision of the model at `path`."""
    if not path:
        return settings.model_copy(update={"revision": commit})
    name, *rest = path
    if isinstance(settings, Mapping):
        return {**settings, name: _with_commit(settings[name], rest, commit)}
    update = {name: _with_commit(getattr(settings, name), rest, commit)}
    return settings.model_copy(update=update)


def shortcuts_label(speed: SpeedSettings) -> str | None:
    """Format the job's shortcuts for the manifest, such as `fp8`; None if there are none."""
    return ",".join(model_key_extras(speed)) or None


def model_key_extras(speed: SpeedSettings) -> Iterator[str]:
    """Yield the settings that change every image of a job, besides the model's files and dtype."""
    if speed.quantization != "none":
        yield speed.quantization
    if speed.guidance_interval is not None:
        start, end = speed.guidance_interval
        yield f"guidance_interval={start}-{end}"
    if speed.step_cache is not None:
        yield f"step_cache={speed.step_cache.interval}"
