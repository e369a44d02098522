"""The plan step: prompt rows become image rows, these become shards, and plan.json freezes them."""

import hashlib
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pydantic.main import IncEx

from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.job.execution import JobLimits
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.user_checks import find_untried_entries, hash_entries
from imagekiln.steps.models.performance import require_room
from imagekiln.steps.models.resolve import ResolvedModel, resolve_model
from imagekiln.steps.models.revisions import NamedRevision
from imagekiln.steps.plan.batch_sizes import load_tuning
from imagekiln.steps.plan.draft import PlanDraft, PlanInputs, make_draft
from imagekiln.steps.plan.estimate import (
    expect_run_time,
    make_expectation,
    require_budget_left,
    require_within_budget,
)
from imagekiln.steps.plan.existing_images import successful_runs
from imagekiln.steps.plan.input_files import find_unused_columns, guessed_columns, input_fingerprint
from imagekiln.steps.plan.rejected_rows import RejectionCause
from imagekiln.steps.plan.rewritten_prompts import PromptRewriter, rewrite_input
from imagekiln.steps.plan.run_time import RunTime
from imagekiln.steps.plan.template_recipes import TEMPLATE_SETTING
from imagekiln.steps.plan.template_rows import read_prompts
from imagekiln.steps.plan.writing import store_input_image, write_plan, write_rejected
from imagekiln.steps.runs.attempts import Terms, terms_of
from imagekiln.steps.runs.commits import read_present_head
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.plan import Plan, load_plan, parse_plan
from imagekiln.steps.runs.run import set_terms
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import local_path, temporary_folder
from imagekiln.steps.storage.store import Store
from imagekiln.steps.storage.uri import is_remote_uri

# What a run may be resumed with other values of: no image depends on it.
UNNAMED_SETTINGS: dict[str, IncEx | bool] = {
    "output": True,
    "price_per_hour": True,
    "budget": True,
    "cluster": True,
}
ACCEPTED_SHARES = ("rejected_share", "failed_share")


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan, where it lies, and whether it existed before.

    `time` is None where there is no figure for what an image takes, and for a plan that existed.
    `guessed_columns` are our names of columns that are read in another spelling, `unused_columns`
    are neither read nor carried; both are empty where a named run existed. `notes` say what else a
    person should know of the input, and are empty for a plan that existed.
    `rejection_causes` is empty where no row was rejected, and for a plan that existed,
    `moved_revisions` the branches and tags that were another commit when the plan was made, as they
    are now. `over_budget` says by how much the budget is exceeded by an estimate that rests on too
    little to refuse the job. `made_prompts` says how many prompts templates made, and of what,
    `input_change` that the input of a named run, or the user's own code, has changed since.
    """

    plan: Plan
    uri: str
    adopted: bool
    time: RunTime | None = None
    guessed_columns: dict[str, str] = field(default_factory=dict)
    unused_columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rejection_causes: tuple[RejectionCause, ...] = ()
    moved_revisions: tuple[NamedRevision, ...] = ()
    over_budget: str | None = None
    made_prompts: str | None = None
    input_change: str | None = None


def make_plan(
    job: Job,
    *,
    must_exist: bool = False,
    sample_images: int | None = None,
    rewriter: PromptRewriter | None = None,
    gpu_memory: float | None = None,
) -> PlanResult:
    """Plan the job under its output, or adopt the plan that exists there with equal settings.

    With `sample_images`, a new plan has a sample of so many images as its first shard; by default,
    as the job's `cluster.canary` says. With `must_exist`, nothing is planned anew: Missing says
    that there is no such run. `rewriter` rewrites prompts that the job wants rewritten and that are
    not yet; without one, BadInput says what to do. `gpu_memory` is the GiB of the GPUs on which a
    new plan is to run, if known. Raises BadInput if the input, the model or the output is not as it
    must be, or the estimate exceeds the budget, BudgetSpent if that is spent, TryAgain if storage
    fails.
    """
    terms = terms_of(job)
    _require_folders(job)
    samples = (job.cluster.canary or 0) if sample_images is None else sample_images
    job = job.without_cluster()
    find_untried_entries(job)  # one that can be tried and is wrong is refused
    named = _adopt_named_run(job, terms)
    if named is not None:
        return named if must_exist else _with_input_change(named, job)
    model = resolve_model(job)
    require_room(job, model.weights_bytes, gpu_memory)
    with temporary_folder("imagekiln-plan-") as folder:
        scratch = Path(folder)
        inputs = replace(_read_inputs(job, model, scratch, rewriter), sample_images=samples)
        run_id = job.run_id or _derive_run_id(job, inputs)
        store = _open_run_store(job, run_id)
        adopted = _adopt_equal_run(store, job, inputs, terms)
        if adopted is not None:
            return adopted
        if must_exist:
            raise Missing(f"{store.uri}: there is no such run to retry. Run the job first.")
        read_present_head(store)
        inputs = replace(inputs, existing_runs=successful_runs(job, run_id))
        store_image = partial(store_input_image, store)
        store_rejected = partial(write_rejected, store, scratch)
        with make_draft(inputs, scratch, store_image, store_rejected) as draft:
            result = _write_draft(store, run_id, inputs, draft, scratch, terms)
            return result or _adopt_first_plan(store, job, model, terms)


def _adopt_named_run(job: Job, terms: Terms) -> PlanResult | None:
    """Adopt the plan of the run that the job names; None if there is none yet."""
    if job.run_id is None:
        return None
    store = _open_run_store(job, job.run_id)
    plan = _read_plan(store)
    if plan is None:
        return None
    return _adopt_plan(store, plan, job, resolve_model(job, plan.revisions), terms)


def _read_inputs(
    job: Job, model: ResolvedModel, scratch: Path, rewriter: PromptRewriter | None
) -> PlanInputs:
    """Read the footers of the prompt files, the rewritten prompts and the tuning."""
    rewritten = rewrite_input(job, read_prompts(job, scratch), rewriter)
    return PlanInputs(
        job=model.job,
        model=model,
        files=rewritten.files,
        tuning=load_tuning(job, model.facts, rewritten.files),
        rewrite=rewritten.facts,
    )


def _adopt_equal_run(store: Store, job: Job, inputs: PlanInputs, terms: Terms) -> PlanResult | None:
    """Adopt the plan of an earlier run with the same name and inputs; None if there is none."""
    plan = _read_plan(store)
    if plan is None:
        return None
    return replace(
        _adopt_plan(store, plan, job, inputs.model, terms),
        guessed_columns=guessed_columns(job, inputs.files),
        unused_columns=find_unused_columns(inputs.files),
    )


def _write_draft(
    store: Store, run_id: str, inputs: PlanInputs, draft: PlanDraft, scratch: Path, terms: Terms
) -> PlanResult | None:
    """Write a draft within its budget as the run's plan; None if another process was first."""
    job = inputs.job
    time = expect_run_time(inputs.model, draft)
    over_budget = require_within_budget(job, time, terms)
    expected = make_expectation(time, terms)
    plan = write_plan(
        store,
        run_id,
        inputs,
        draft,
        scratch,
        expected,
    )
    if plan is None:
        return None
    set_terms(store, plan, terms)
    return PlanResult(
        plan,
        store.uri,
        adopted=False,
        time=time,
        guessed_columns=guessed_columns(job, inputs.files),
        unused_columns=find_unused_columns(inputs.files),
        notes=draft.notes,
        rejection_causes=draft.rejection_causes,
        over_budget=over_budget,
        made_prompts=inputs.files[0].made_prompts,
    )


def _adopt_first_plan(store: Store, job: Job, model: ResolvedModel, terms: Terms) -> PlanResult:
    """Adopt the plan of the process that was first to write it."""
    adopted = _adopt_plan(store, load_plan(store), job, model, terms)
    return _with_input_change(adopted, job)


def _with_input_change(adopted: PlanResult, job: Job) -> PlanResult:
    change = _describe_input_change(job, adopted.plan)
    return replace(adopted, input_change=change or adopted.input_change)


def _describe_input_change(job: Job, plan: Plan) -> str | None:
    """A sentence if the input is not what the run was planned from, or cannot be compared.

    A named run keeps its plan, whatever becomes of its input: whoever corrects rows has to learn
    that.
    """
    try:
        with temporary_folder("imagekiln-input-") as folder:
            files = read_prompts(job, Path(folder))
    except KilnError as error:
        return f"The input cannot be compared with that of the plan: {error}"
    if input_fingerprint(files) == plan.input.sha256:
        return None
    first, *others = job.prompt_patterns or (TEMPLATE_SETTING,)
    names = first + (f" and {len(others)} more" if others else "")
    rows = sum(file.rows for file in files)
    counts = ""
    if rows != plan.input.rows:
        counts = f" ({pluralize(plan.input.rows, 'row')} then, {rows:,} now)"
    return (
        f"{names}: has changed{counts} since this run was planned. What changed is not in the run. "
        "Set another run_id or --date to plan it."
    )


def _describe_code_change(job: Job, plan: Plan) -> str | None:
    """A sentence if functions of the user's own have changed since the run was planned."""
    hashes = hash_entries(job)
    changed = [name for name, sha256 in plan.entries.items() if hashes.get(name, sha256) != sha256]
    if not changed:
        return None
    return (
        f"{', '.join(changed)}: the file of this function has changed since this run was planned. "
        "Images that are made already keep what it said of them. Set another run_id to judge anew."
    )


def is_planned(job: Job) -> bool:
    """Whether the job names a run that is planned, so that planning reads no prompts.

    Raises BadInput where the plan cannot be read, TryAgain where storage fails.
    """
    if job.run_id is None:
        return False
    store = _open_run_store(job, job.run_id)
    return _read_plan(store) is not None


def _derive_run_id(job: Job, inputs: PlanInputs) -> str:
    """The name of a run that has none: the job's, and a hash of all that decides the plan.

    It stays the same when a branch or tag moves, so that a job that names one resumes and retries
    the run that it began. What was tuned for a commit of the model is then no part of it either.
    """
    is_named = any(revision.setting == "model" for revision in inputs.model.revisions)
    # The shares decide whether a run is accepted, and none of its images.
    defaults = JobLimits()
    shares = {name: getattr(defaults, name) for name in ACCEPTED_SHARES}
    limits = job.limits.model_copy(update=shares)
    named_job = job.model_copy(update={"limits": limits})
    content = [
        named_job.model_dump_json(exclude=UNNAMED_SETTINGS),
        input_fingerprint(inputs.files),
        inputs.model.fixed_digest,
        "" if is_named else inputs.tuning.key,
        "" if inputs.rewrite is None else inputs.rewrite.sha256,
    ]
    return f"{job.name}-{hashlib.sha256(''.join(content).encode()).hexdigest()[:12]}"


def _open_run_store(job: Job, run_id: str) -> Store:
    return open_store(f"{job.output.rstrip('/')}/{run_id}")


def _require_folders(job: Job) -> None:
    """Raise BadInput if a file is where runs or their copies are to be."""
    folders = [("output", job.output)]
    folders += [(f"export[{number}].to", copy.to) for number, copy in enumerate(job.export)]
    for setting, folder in folders:
        if is_remote_uri(folder):
            continue
        path = local_path(folder)
        with translate_errors(folder):
            if any(place.is_file() for place in (path, *path.parents)):
                raise BadInput(f"{setting}: {folder} is a file, or lies within one. Name a folder.")


def _read_plan(store: Store) -> Plan | None:
    """The plan in `store`; None where there is none. Raises BadInput where it is unreadable."""
    try:
        content = store.read(PLAN_KEY)
    except Missing:
        return None
    return parse_plan(content, store.uri_of(PLAN_KEY))


def _adopt_plan(
    store: Store, plan: Plan, job: Job, model: ResolvedModel, terms: Terms
) -> PlanResult:
    """The plan in `store`, for a job that may have been planned as it.

    A branch or tag that has moved since is the commit that the plan froze. Raises BadInput where
    the plan is one of other settings or files, BudgetSpent where it has no budget left.
    """
    moved = tuple(named for named in model.revisions if named not in plan.revisions)
    if moved:
        model = resolve_model(job, plan.revisions)
    planned, wanted = fixed_settings(plan.job), fixed_settings(model.job)
    difference = next((key for key in wanted if planned[key] != wanted[key]), None)
    if difference is not None:
        raise BadInput(
            f"{store.uri}: holds a plan with another `{difference}`. "
            "Choose another run_id or output."
        )
    planned_files = plan.model.digest, plan.adapters, plan.loras, plan.scores, plan.passes
    found_files = model.facts.digest, model.adapters, model.loras, model.scores, model.passes
    if planned_files != found_files:
        raise BadInput(
            f"{store.uri}: was planned with other files of {job.model.id} or adapters. "
            "Choose another run_id or output."
        )
    require_budget_left(set_terms(store, plan, terms))
    change = _describe_code_change(job, plan)
    return PlanResult(
        plan,
        store.uri,
        adopted=True,
        moved_revisions=moved,
        input_change=change,
    )


def fixed_settings(job: Job) -> dict[str, object]:
    """The settings that must be equal for a run to be resumed, as JSON has them.

    `run_id` names the folder, so that a run is also resumed by the name that was derived for it.
    """
    free: dict[str, IncEx | bool] = {**UNNAMED_SETTINGS, "run_id": True}
    free["limits"] = dict.fromkeys(ACCEPTED_SHARES, True)
    settings = job.model_dump(mode="json", exclude=free)
    # The order of passes decides pixels, and that of a mapping is lost in comparing it.
    settings["passes"] = list(settings.get("passes", {}).items())
    return settings
