"""The plan step: expand prompt rows to image rows, cut these into shards, and write plan.json."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pydantic.main import IncEx

from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.job.execution import JobLimits
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.user_checks import find_untried_entries, hash_entries
from imagekiln.steps.models.placement import choose_placement
from imagekiln.steps.models.resolve import NamedRevision, ResolvedModel, resolve_model
from imagekiln.steps.plan.catalog import successful_runs
from imagekiln.steps.plan.draft import PlanDraft, PlanInputs, make_draft
from imagekiln.steps.plan.estimate import (
    RunTime,
    expect_run_time,
    make_expectation,
    require_budget_left,
    require_within_budget,
)
from imagekiln.steps.plan.input_files import find_unused_columns, guessed_columns, input_fingerprint
from imagekiln.steps.plan.rejected_rows import RejectionCause, find_rejection_causes
from imagekiln.steps.plan.rewriting import PromptRewriter, rewrite_input
from imagekiln.steps.plan.sharding import load_tuning
from imagekiln.steps.plan.templates import read_prompts
from imagekiln.steps.plan.writing import store_input_image, write_plan, write_rejected
from imagekiln.steps.runs.attempts import Terms, terms_of
from imagekiln.steps.runs.commits import read_present_head
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.plan import Plan, parse_plan
from imagekiln.steps.runs.run import set_terms
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.store import Store

# Settings that may change when a run is resumed, because no image depends on them.
UNNAMED_SETTINGS: dict[str, IncEx | bool] = {
    "output": True,
    "price_per_hour": True,
    "budget": True,
    "cluster": True,
}


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The result of planning: a plan, and the URI of its run.

    `time` is None if no figure is known. `guessed_columns` maps column names in the files to the
    prompt columns that they stand for. `unused_columns` are neither read nor carried. `over_budget`
    describes the excess over the budget by an estimate that is not firm. For an adopted plan,
    `moved_revisions` are branches and tags that have moved since planning, and `input_change`
    describes changes of the input or the user's code. Other fields may then be empty.
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
    """Plan the job under its output, or adopt an existing plan with equal settings.

    The first shard of a new plan is a sample of `sample_images` images, by default
    `cluster.canary`. With `must_exist`, Missing is raised if the run does not exist. `rewriter`
    rewrites prompts if the job has `rewrite` settings. `gpu_memory` is the memory of the GPUs in
    GiB, if known. Raises BadInput if the input, model or output is invalid or the estimate exceeds
    the budget, BudgetSpent, TryAgain.
    """
    terms = terms_of(job)
    samples = (job.cluster.canary or 0) if sample_images is None else sample_images
    find_untried_entries(job)  # raises if an entry can be tried and is wrong
    asked = job.without_cluster()
    if asked.run_id is not None:
        named = _adopt_run(asked, asked.run_id, terms, must_exist=must_exist)
        if named is not None:
            return named
    model = resolve_model(asked)
    choose_placement(asked, model.weights, gpu_memory)  # raises if none fits
    with temporary_folder("imagekiln-plan-") as folder:
        scratch = Path(folder)
        inputs = _read_inputs(asked, model, scratch, rewriter)
        run_id = asked.run_id or _derive_run_id(asked, inputs)
        adopted = _adopt_run(asked, run_id, terms, model)
        if adopted is not None:
            return replace(
                adopted,
                guessed_columns=guessed_columns(asked, inputs.files),
                unused_columns=find_unused_columns(inputs.files),
            )
        store = _open_run_store(asked, run_id)
        if must_exist:
            raise Missing(f"{store.uri}: there is no such run to retry. Run the job first.")
        read_present_head(store)
        existing = successful_runs(asked, run_id)
        inputs = replace(inputs, existing_runs=existing, sample_images=samples)
        store_image = partial(store_input_image, store)
        store_rejected = partial(write_rejected, store, scratch)
        with make_draft(inputs, scratch, store_image, store_rejected) as draft:
            result = _write_draft(store, run_id, draft, scratch, terms)
    # If another process wrote a plan first, adopt it.
    return result or make_plan(
        job, sample_images=sample_images, rewriter=rewriter, gpu_memory=gpu_memory
    )


def _read_inputs(
    job: Job, model: ResolvedModel, scratch: Path, rewriter: PromptRewriter | None
) -> PlanInputs:
    """Read and rewrite the prompts. Raises BadInput if rewritten prompts are missing."""
    rewritten = rewrite_input(job, read_prompts(job, scratch), rewriter)
    if rewritten.missing:
        raise BadInput(
            f"{job.output}: lacks {rewritten.missing} rewritten prompts of the job, and "
            "planning rewrites none. First type `imagekiln rewrite JOB` where the language "
            "model can run, or `imagekiln submit JOB`, whose workflow does it."
        )
    return PlanInputs(
        job=model.job,
        model=model,
        files=rewritten.files,
        tuning=load_tuning(job, model.facts, rewritten.files),
        rewrite=rewritten.facts,
    )


def _write_draft(
    store: Store, run_id: str, draft: PlanDraft, scratch: Path, terms: Terms
) -> PlanResult | None:
    """Write a draft as the run's plan; None if another process was first."""
    inputs = draft.inputs
    job = inputs.job
    time = expect_run_time(inputs.model, draft)
    over_budget = require_within_budget(job, time, terms)
    plan = write_plan(
        store,
        run_id,
        draft,
        scratch,
        make_expectation(time, terms),
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
        rejection_causes=find_rejection_causes(inputs.files, draft.catalog),
        over_budget=over_budget,
        made_prompts=inputs.files[0].made_prompts,
    )


def _describe_input_change(job: Job, plan: Plan) -> str | None:
    """Describe a change of the input since the run was planned; None if it is unchanged."""
    try:
        with temporary_folder("imagekiln-input-") as folder:
            files = read_prompts(job, Path(folder))
    except KilnError as error:
        return f"The input cannot be compared with that of the plan: {error}"
    if input_fingerprint(files) == plan.input.sha256:
        return None
    return (
        f"{files[0].source.uri}: this input has changed since the run was planned. The change is "
        "not in the run. Set another run_id or --date to plan it."
    )


def _describe_code_change(job: Job, plan: Plan) -> str | None:
    """Describe changes of the user's functions since planning; None if they are unchanged."""
    hashes = hash_entries(job)
    changed = [name for name, sha256 in plan.entries.items() if hashes.get(name, sha256) != sha256]
    if not changed:
        return None
    return (
        f"{', '.join(changed)}: the file of this function has changed since this run was planned. "
        "Existing images keep its earlier results. Set another run_id to judge anew."
    )


def is_planned(job: Job) -> bool:
    """Return whether the job names a planned run. Planning it again reads no prompts."""
    run_id = job.run_id
    return run_id is not None and _read_plan(_open_run_store(job, run_id)) is not None


def _derive_run_id(job: Job, inputs: PlanInputs) -> str:
    """Derive the run id: the job's name, and a hash of the inputs that determine the plan.

    If the model is a branch or tag, neither its commit nor its tuning entries are hashed. A job
    therefore resumes its run after the branch has moved.
    """
    is_named = any(revision.setting == "model" for revision in inputs.model.revisions)
    # The limits decide whether a run is accepted. No image depends on them.
    named_job = job.model_copy(update={"limits": JobLimits()})
    content = [
        named_job.model_dump_json(exclude=UNNAMED_SETTINGS),
        input_fingerprint(inputs.files),
        inputs.model.fixed_digest,
        "" if is_named else inputs.tuning.key,
        "" if inputs.rewrite is None else inputs.rewrite.sha256,
    ]
    digest = hashlib.sha256("".join(content).encode())
    return f"{job.name}-{digest.hexdigest()[:12]}"


def _open_run_store(job: Job, run_id: str) -> Store:
    return open_store(f"{job.output.rstrip('/')}/{run_id}")


def _read_plan(store: Store) -> Plan | None:
    with suppress(Missing):
        return parse_plan(store.read(PLAN_KEY), store.uri_of(PLAN_KEY))
    return None


def _adopt_run(
    job: Job,
    run_id: str,
    terms: Terms,
    model: ResolvedModel | None = None,
    *,
    must_exist: bool = False,
) -> PlanResult | None:
    """Adopt the plan of a run; None if there is none.

    Branches and tags resolve to the commits in the plan. Raises BadInput if the plan has other
    settings or model files, BudgetSpent.
    """
    store = _open_run_store(job, run_id)
    plan = _read_plan(store)
    if plan is None:
        return None
    named = () if model is None else model.revisions
    moved = tuple(revision for revision in named if revision not in plan.revisions)
    if model is None or moved:
        model = resolve_model(job, plan.revisions)
    planned = fixed_settings(plan.job)
    for setting, value in fixed_settings(model.job).items():
        if planned[setting] != value:
            raise BadInput(
                f"{store.uri}: holds a plan with another `{setting}`. "
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
    change = None
    if job.run_id is not None and not must_exist:
        change = _describe_input_change(job, plan)
    change = change or _describe_code_change(job, plan)
    return PlanResult(
        plan,
        store.uri,
        adopted=True,
        moved_revisions=moved,
        input_change=change,
    )


def fixed_settings(job: Job) -> dict[str, object]:
    """Return the settings that must be equal to resume a run, as JSON without `run_id`."""
    free: dict[str, IncEx | bool] = {**UNNAMED_SETTINGS, "run_id": True, "limits": True}
    settings = job.model_dump(mode="json", exclude=free)
    # The order of passes changes images, but comparing mappings ignores their order.
    settings["passes"] = list(settings.get("passes", {}).items())
    return settings
