"""The rewrite step: a language model rewrites each distinct prompt of a job once.

Parts are committed under the output, so a step that was killed resumes at the next part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.start import require_extra
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import LanguageModelSettings, RewriteSettings
from imagekiln.steps.models.component_files import (
    CONFIG_FILE,
    locate_files,
    require_data_component,
    require_safetensors,
    weights_digest,
)
from imagekiln.steps.models.hub import is_commit, is_hub_id, resolve_commit
from imagekiln.steps.plan.rewriting import (
    FrozenModel,
    PromptRewriter,
    Rewriting,
    collect_prompts,
    open_rewriting,
)
from imagekiln.steps.plan.step import is_planned
from imagekiln.steps.plan.templates import read_prompts
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.machine import limit_spinning
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.storage.local import temporary_folder

if TYPE_CHECKING:
    from imagekiln.steps.rewrite.language_model import LanguageModel

MODEL_SETTING = "rewrite.model"
PART_PROMPTS = 256  # rewritten again after a kill
LIBRARIES = ("torch", "transformers")
# The files that transformers reads beside weights, without weights of other frameworks.
SMALL_FILES = (
    *("*.json", "*.jinja", "merges.txt", "vocab.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
)
WEIGHTS = "model*.safetensors"


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The location of the rewritten prompts, their number, and the number that are new."""

    uri: str
    prompts: int
    rewritten: int


def rewrite(job: Job, progress: Progress | None = None) -> RewriteResult:
    """Rewrite the job's prompts that are not rewritten yet, for a later `plan` on any machine.

    Does nothing if the run is already planned. Raises BadInput if job, prompts or model must be
    corrected, TryAgain if the hub, storage or the device failed. The next call resumes.
    """
    job = job.without_cluster()
    settings = require_rewrite(job)
    rewriting = open_rewriting(job, settings)
    progress = progress or NoProgress()
    if is_planned(job):
        _say(progress, f"The run {job.run_id} is planned already, with the texts that it has.")
        return RewriteResult(rewriting.uri, 0, 0)
    with temporary_folder("imagekiln-rewrite-") as folder:
        files = read_prompts(job, Path(folder))
        prompts = collect_prompts(files)
        rewritten = _rewrite_prompts(progress, progress, job, prompts)
    return RewriteResult(rewriting.uri, len(prompts), rewritten)


def fetch_language_model(job: Job) -> str:
    """Download the job's language model into the local cache; return a message with its folder.

    Raises BadInput if the job has none or it is not a text generation model, Missing, TryAgain.
    """
    settings = require_rewrite(job)
    rewriting = open_rewriting(job, settings)
    model = _resolve_model(settings, rewriting)
    folder = _locate_model(_pin(settings, model), *SMALL_FILES, WEIGHTS)
    return f"{settings.model.id} is in {folder}."


def require_rewrite(job: Job) -> RewriteSettings:
    """Return the job's settings for rewriting. Raises BadInput if it has none."""
    if job.rewrite is None:
        raise BadInput("the job has no `rewrite`. Add it, or plan the job as it is.")
    return job.rewrite


def prompt_rewriter(progress: Progress | None = None) -> PromptRewriter:
    """Build a function that rewrites the prompts of a job in this process, for `make_plan`."""
    notes = progress or NoProgress()  # its bar counts images, not prompts

    def rewrite_prompts(job: Job, prompts: set[str]) -> None:
        _rewrite_prompts(notes, NoProgress(), job, prompts)

    return rewrite_prompts


def _rewrite_prompts(notes: Progress, counter: Progress, job: Job, prompts: set[str]) -> int:
    """Rewrite and commit the parts with any of these prompts; return their number of prompts."""
    settings = require_rewrite(job)
    rewriting = open_rewriting(job, settings)
    listed = [*rewriting.divide(prompts)]
    count = sum(len(own) for _, own in listed)
    is_complete = all(rewriting.has_part(part) for part, _ in listed)
    if is_complete and count == len(prompts):
        return 0
    require_extra("generate", LIBRARIES, "to rewrite prompts")
    limit_spinning()
    model = _resolve_model(settings, rewriting)
    _say(notes, f"Loading {settings.model.id} ...")
    with _open_model(job, settings, model) as language_model:
        # Frozen only after loading, so that a model that does not load is not frozen.
        check_store = job.unconditional_writes == "refuse"
        rewriting.freeze_model(model, check_store=check_store)
        rewriting.append_lists(prompts)
        parts = (part for part, _ in rewriting.divide(prompts))
        missing = [part for part in parts if not rewriting.has_part(part)]
        total = sum(len(part.prompts) for part in missing)
        _say(notes, f"Rewriting {pluralize(total, 'prompt')} ...")
        counter.start(total)
        for part in missing:
            if not rewriting.has_part(part):  # another process may have committed it
                texts = language_model.rewrite(part.prompts)
                rewriting.commit_part(part, texts)
            counter.add_committed(len(part.prompts))
    return total


def _say(progress: Progress, sentence: str) -> None:
    progress.show_event("rewrite", sentence)


def _resolve_model(settings: RewriteSettings, rewriting: Rewriting) -> FrozenModel:
    """Return the frozen model, whose files must be unchanged, or one to freeze."""
    frozen = rewriting.read_model()
    reference = settings.model
    revision = reference.revision
    if frozen is not None:
        revision = frozen.revision
    elif is_hub_id(reference.id) and not is_commit(revision):
        revision = resolve_commit(reference, MODEL_SETTING)
    reference = reference.model_copy(update={"revision": revision})
    require_safetensors(MODEL_SETTING, reference, (WEIGHTS,))
    _locate_model(reference, *SMALL_FILES)
    digest = weights_digest(reference)
    is_other = frozen is not None and digest != frozen.digest
    if is_other:
        raise BadInput(
            f"{reference.id}: is not the model that {rewriting.uri} was begun with. Restore it, or "
            "give the other one another name, with which all prompts are rewritten anew."
        )
    return frozen or FrozenModel(reference.id, revision, digest, PART_PROMPTS)


def _pin(settings: RewriteSettings, model: FrozenModel) -> LanguageModelSettings:
    """Copy the model's settings with its commit."""
    update = {"revision": model.revision}
    return settings.model.model_copy(update=update)


def _locate_model(reference: LanguageModelSettings, *patterns: str) -> Path:
    """Return the folder of a transformers model with these files, downloaded if need be.

    They may name remote code, which transformers does not run unless told to trust it.
    """
    folder = locate_files(MODEL_SETTING, reference, [*patterns])
    if not (folder / CONFIG_FILE).is_file():
        raise BadInput(
            f"{reference.id}: has no {CONFIG_FILE}, so it is not a model of transformers. "
            f"Set {MODEL_SETTING}.id to another."
        )
    require_data_component(folder, reference.id, may_be_quantized=True)
    return folder


@contextmanager
def _open_model(
    job: Job, settings: RewriteSettings, model: FrozenModel
) -> "Iterator[LanguageModel]":
    """Load the model for the block, and free its memory afterwards."""
    # Imported only here, since torch takes seconds to import.
    from imagekiln.steps.generate.diffusion.device import free_memory
    from imagekiln.steps.rewrite.language_model import load_language_model

    folder = _locate_model(_pin(settings, model), *SMALL_FILES, WEIGHTS)
    try:
        yield load_language_model(settings, folder, job.device)
    finally:
        free_memory()
