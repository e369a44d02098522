"""Branches and tags of the hub, which a job may name, as the commits that a plan freezes."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.facts import is_hub_id
from imagekiln.steps.models.hub import DEFAULT_REVISION, is_commit, resolve_commit
from imagekiln.steps.models.pass_models import model_references, pin_passes
from imagekiln.steps.models.passes import pass_references
from imagekiln.steps.models.scorers import pin_scores, score_references
from imagekiln.steps.models.single_file import configuration_reference

LORA_SETTING_PREFIX = "model.loras."


@dataclass(frozen=True, slots=True)
class NamedRevision:
    """A branch or tag that a job names, and the commit that it was when the run was planned.

    `setting` is the one that refers to the repository `id`, such as model or model.loras.style.
    """

    setting: str
    id: str
    name: str
    commit: str


def pin_revisions(
    job: Job, planned: Collection[NamedRevision] = ()
) -> tuple[Job, tuple[NamedRevision, ...]]:
    """Replace branches, tags and omitted revisions by commits; return the names that were there.

    A name that is among those of an existing plan, `planned`, is the commit that it was there; of
    any other the hub is asked. Raises BadInput, Missing, TryAgain.
    """
    planned_commits = {(named.setting, named.id, named.name): named.commit for named in planned}
    revisions: list[NamedRevision] = []
    references = (
        *_references(job.model),
        *score_references(job),
        *pass_references(job),
        *model_references(job),
    )
    for setting, reference in references:
        if not is_hub_id(reference.id):
            _refuse_revision(setting, reference)
            continue
        if is_commit(reference.revision):
            continue
        name = reference.revision or DEFAULT_REVISION
        commit = planned_commits.get((setting, reference.id, name))
        if commit is None:
            commit = resolve_commit(reference, setting)
        revisions.append(NamedRevision(setting, reference.id, name, commit))
    if not revisions:
        return job, ()
    commits = {named.setting: named.commit for named in revisions}
    model = _with_commits(job.model, commits)
    update = {
        "model": model,
        "scores": pin_scores(job.scores, commits),
        "passes": pin_passes(job.passes, commits),
    }
    return job.model_copy(update=update), tuple(revisions)


def _refuse_revision(setting: str, reference: HubReference) -> None:
    if reference.revision is not None:
        raise BadInput(
            f"{setting}.revision is {reference.revision}, and {reference.id} is no repository of a "
            f"hub, so that it has none. Remove the revision, or correct {setting}.id."
        )


def _references(model: ModelSettings) -> Iterator[tuple[str, HubReference]]:
    """References of the model's settings, by the path of the setting."""
    yield "model", configuration_reference(model)
    yield from adapter_references(model)


def adapter_references(model: ModelSettings) -> Iterator[tuple[str, HubReference]]:
    """A model's adapters and LoRAs, by the path of the setting."""
    for adapter in (model.controlnet, model.ip_adapter):
        if adapter is not None:
            yield adapter.setting_path, adapter
    for name, lora in sorted(model.loras.items()):
        yield f"{LORA_SETTING_PREFIX}{name}", lora


def _with_commits(model: ModelSettings, commits: Mapping[str, str]) -> ModelSettings:
    """The model's settings with these commits as revisions, by the path of the setting."""
    pinned: dict[str, HubReference] = {}
    for setting, reference in _references(model):
        commit = commits.get(setting, reference.revision)
        pinned[setting] = reference.model_copy(update={"revision": commit})

    update: dict[str, object] = {"revision": commits.get("model", model.revision)}
    for adapter in (model.controlnet, model.ip_adapter):
        if adapter is not None:
            field = adapter.setting_path.removeprefix("model.")
            update[field] = pinned[adapter.setting_path]
    update["loras"] = {name: pinned[f"{LORA_SETTING_PREFIX}{name}"] for name in model.loras}
    return model.model_copy(update=update)
