"""The rewrite step: each distinct prompt of a job goes through a language model, once.

What is committed under the output stays, so that a step that was killed resumes at the next part.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.start import require_extra
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.rewrite import RewriteSettings
from imagekiln.steps.models.facts import is_hub_id, weights_digest
from imagekiln.steps.models.hub import is_commit, resolve_commit
from imagekiln.steps.plan.rewritten_prompts import (
    PromptRewriter,
    collect_prompts,
    rewrite_input,
)
from imagekiln.steps.plan.template_rows import read_prompts
from imagekiln.steps.rewrite.model_files import require_language_model
from imagekiln.steps.runs.rewriting import FrozenModel, RewritePart, Rewriting, open_rewriting
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.libraries import limit_spinning
from imagekiln.steps.runtime.progress import Event, NoProgress, Progress
from imagekiln.steps.storage.local import temporary_folder

if TYPE_CHECKING:
    from imagekiln.steps.rewrite.language_model import LanguageModel

MODEL_SETTING = "rewrite.model"
PART_PROMPTS = 256  # of which each is rewritten again after a kill
LIBRARIES = ("torch", "transformers")


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """Where the texts lie, the distinct prompts of the job, and how many were rewritten now."""

    uri: str
    prompts: int
    rewritten: int


def rewrite(job: Job, progress: Progress | None = None) -> RewriteResult:
    """Rewrite the job's prompts that are not rewritten yet, for `plan` wherever it runs.

    Raises BadInput where job, prompts or model must be corrected, TryAgain where the hub, storage
    or the device failed; then it resumes.
    """
    settings = job.rewrite
    if settings is None:
        raise BadInput("the job has no `rewrite`. Add it, or plan the job as it is.")
    job = job.without_cluster()
    counts: list[int] = []

    def count_rewritten(job: Job, prompts: set[str]) -> None:
        counts.append(_rewrite_prompts(progress or NoProgress(), job, prompts))

    with temporary_folder("imagekiln-rewrite-") as folder:
        files = read_prompts(job, Path(folder))
        rewrite_input(job, files, count_rewritten)
        prompts = len(collect_prompts(job, files))
    return RewriteResult(open_rewriting(job, settings).uri, prompts, sum(counts))


def prompt_rewriter(progress: Progress | None = None) -> PromptRewriter:
    """What rewrites the prompts of a job here, for `make_plan`."""

    def rewrite_prompts(job: Job, prompts: set[str]) -> None:
        _rewrite_prompts(progress or NoProgress(), job, prompts)

    return rewrite_prompts


def _rewrite_prompts(progress: Progress, job: Job, prompts: set[str]) -> int:
    """Commit the texts of all parts that have one of these prompts; the number of their prompts."""
    settings = job.rewrite
    if settings is None:
        return 0
    require_extra("generate", LIBRARIES, "to rewrite prompts")
    limit_spinning()
    rewriting = open_rewriting(job, settings)
    model = _resolve_model(settings, rewriting)
    show = partial(_show, progress)
    show(f"Loading {settings.model.id} ...")
    with _open_model(job, settings, model) as language_model:
        # Frozen once it is loaded, so that one which cannot rewrite anything is not.
        rewriting.freeze_model(model, check_store=job.unconditional_writes == "refuse")
        rewriting.append_lists(prompts)
        missing = _find_missing_parts(rewriting, prompts)
        total = sum(len(part.prompts) for part in missing)
        for done in _commit_parts(rewriting, missing, language_model):
            show(f"Rewrote {done} of {pluralize(total, 'prompt')}.")
    return total


def _show(progress: Progress, sentence: str) -> None:
    progress.show_event(Event("rewrite", {}, sentence))


def _find_missing_parts(rewriting: Rewriting, prompts: set[str]) -> list[RewritePart]:
    """The parts that have one of these prompts and are not committed."""
    parts = rewriting.iter_parts()
    of_job = (part for part in parts if not prompts.isdisjoint(part.prompts))
    return [part for part in of_job if not rewriting.has_part(part)]


def _commit_parts(
    rewriting: Rewriting, parts: Sequence[RewritePart], language_model: "LanguageModel"
) -> Iterator[int]:
    """Write the text of each part, and commit it. Gives the number of prompts so far."""
    done = 0
    for part in parts:
        if not rewriting.has_part(part):  # another process may be at work on them
            rewriting.commit_part(part, language_model.rewrite(part.prompts))
        done += len(part.prompts)
        yield done


def _resolve_model(settings: RewriteSettings, rewriting: Rewriting) -> FrozenModel:
    """The model of all texts: that of the first who rewrote any, which has to be here unchanged.

    Raises BadInput where it is another one, or no language model, Missing, TryAgain.
    """
    frozen = rewriting.read_model()
    reference = settings.model
    if frozen is not None:
        reference = reference.model_copy(update={"revision": frozen.revision})
    elif is_hub_id(reference.id) and not is_commit(reference.revision):
        commit = resolve_commit(reference, MODEL_SETTING)
        reference = reference.model_copy(update={"revision": commit})

    require_language_model(reference, MODEL_SETTING)
    digest = weights_digest(reference)
    model = FrozenModel(reference.id, reference.revision, digest, PART_PROMPTS)
    if frozen is not None and model.digest != frozen.digest:
        raise BadInput(
            f"{reference.id}: is not the model that {rewriting.uri} was begun with. Restore it, or "
            "give the other one another name, with which all prompts are rewritten anew."
        )
    return frozen or model


@contextmanager
def _open_model(
    job: Job, settings: RewriteSettings, model: FrozenModel
) -> "Iterator[LanguageModel]":
    """The loaded model. Its memory is free after the block."""
    # Imported only where texts are written: torch takes seconds to import.
    from imagekiln.steps.generate.diffusion.device import free_memory
    from imagekiln.steps.rewrite.language_model import load_language_model

    reference = settings.model.model_copy(update={"revision": model.revision})
    pinned = settings.model_copy(update={"model": reference})
    try:
        yield load_language_model(pinned, job.device, job.threads)
    finally:
        free_memory()
