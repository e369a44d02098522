"""What the commands print of a job before it is carried out: its plan, estimate and batch sizes."""

from dataclasses import replace
from typing import TYPE_CHECKING

from imagekiln.steps.errors import cut_name
from imagekiln.steps.job.passes import RefinePass, describe_pass
from imagekiln.steps.job.scores import describe_score
from imagekiln.steps.job.user_checks import find_untried_entries
from imagekiln.steps.models.facts import describe_defaults
from imagekiln.steps.models.passes import iter_pass_jobs
from imagekiln.steps.runs.keys import rejected_key
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_money,
    format_number,
    pluralize,
)
from imagekiln.steps.runtime.sanitize import sanitize_line
from imagekiln.steps.storage import open_store
from imagekiln.workflows.cli.terminal import print_note
from imagekiln.workflows.cli.text import format_table

if TYPE_CHECKING:  # the commands bring them
    from imagekiln.steps.job.job import Job
    from imagekiln.steps.job.tuning_file import TuningEntry, TuningResult
    from imagekiln.steps.plan.estimate import Estimate
    from imagekiln.steps.plan.rejected_rows import RejectionCause
    from imagekiln.steps.plan.step import PlanResult
    from imagekiln.steps.runs.plan import Plan

MAX_SIZES = 5
MAX_UNUSED_COLUMNS = 8
MIN_NAME_WIDTH = 11
MAX_DUPLICATE_SHARE = 0.1  # of the images, that is omitted without a word on why
BYTES_PER_GIGABYTE = 1e9
NO_REFUSAL = (
    "The estimate rests on too little to refuse the job, which stops when its budget is spent"
)


def print_plan(result: "PlanResult", gpus: int = 1) -> None:
    """Print a plan that is about to be carried out, next to the command's result."""
    print_note(format_plan(result, gpus))
    print_plan_warnings(result)


def print_plan_warnings(result: "PlanResult") -> None:
    """Print what may go wrong: the input is another, the budget may not do, checks fail."""
    if result.input_change is not None:
        print_note(sanitize_line(result.input_change))
    if result.over_budget is not None:
        print_note(f"Budget exceeded by the estimate: {result.over_budget}. {NO_REFUSAL}.")
    print_untried_entries(result.plan.job)


def print_untried_entries(job: "Job") -> None:
    """Print which of the user's functions are not importable here."""
    for sentence in find_untried_entries(job):
        print_note(sanitize_line(sentence))


def format_plan(result: "PlanResult", gpus: int = 1, cluster_gpus: int | None = None) -> str:
    """A plan, in a line or two, and how long it takes on so many GPUs, if that is known.

    With `cluster_gpus`, which a cluster gives it, the time is that on one GPU and on those.
    """
    plan = result.plan
    counts = plan.counts
    verb = "Reused the plan of" if result.adopted else "Planned"
    extras = [
        (counts.rejected_rows, f"{pluralize(counts.rejected_rows, 'row')} rejected"),
        (counts.duplicate_images, f"{pluralize(counts.duplicate_images, 'duplicate')} omitted"),
        (counts.existing_images, f"{counts.existing_images:,} already in earlier runs"),
        (
            counts.truncated_prompts,
            f"{pluralize(counts.truncated_prompts, 'prompt')} truncated by the model",
        ),
    ]
    extra = "".join(f", {phrase}" for count, phrase in extras if count)
    shards = pluralize(len(plan.shards), "shard")
    images = f"{pluralize(counts.images, 'image')} in {shards}"
    if plan.sample_images:
        images += f", the first a sample of {plan.sample_images}"
    uri = sanitize_line(result.uri)
    notes = [
        _format_rejections(result),
        _format_duplicates(counts.duplicate_images, counts.images),
        _format_revisions(result),
        _format_columns(result),
        _format_defaults(plan),
        _format_batches(plan),
        format_scores(plan.job),
        format_passes(plan.job, plan.pass_sizes.final((plan.width, plan.height))),
    ]
    time = _format_time(result, gpus, cluster_gpus)
    return f"{verb} {images}{extra}: {uri}{''.join(notes)}{time}"


def _format_rejections(result: "PlanResult") -> str:
    """Where rejected rows are listed, and why they were rejected."""
    if not result.plan.counts.rejected_rows:
        return ""
    where = open_store(result.uri).uri_of(rejected_key(result.plan.rejected))
    sentence = f"Rejected rows are listed in {where}."
    if result.rejection_causes:
        return f"\n{sanitize_line(sentence)} Reasons:{_list_causes(result.rejection_causes)}"
    return f"\n{sanitize_line(sentence)}"


def _list_causes(causes: "tuple[RejectionCause, ...]") -> str:
    """Why rows are rejected, one reason a line."""
    from imagekiln.steps.plan.draft import describe_causes

    return "".join(f"\n  {sanitize_line(line)}" for line in describe_causes(causes))


def _format_time(result: "PlanResult", gpus: int, cluster_gpus: int | None) -> str:
    """How long it takes, on a line of its own, if that is known and there is anything to make."""
    if result.time is None or not result.plan.counts.images:
        return ""
    if cluster_gpus is None:
        # Here, devices share the parts of a shard.
        plan = result.plan
        parts = sum(plan.part_count(shard) for shard in range(len(plan.shards)))
        device = "cpu" if plan.job.device == "cpu" else result.time.device
        sentence = replace(result.time, shards=parts, device=device).describe(gpus)
    else:
        sentence = result.time.describe_both(cluster_gpus)
    return f"\n{sanitize_line(sentence)}"


def _format_defaults(plan: "Plan") -> str:
    """What of the model itself rows are drawn with, on a line; empty where the job sets it all."""
    drawn = describe_defaults(plan.job, plan.model)
    if plan.model.own.source not in drawn:
        return ""
    return f"\n{sanitize_line(f'Draws {drawn}.')}"


def _format_revisions(result: "PlanResult") -> str:
    """The commits of branches and tags, a line each, and those that have moved since."""
    now = {moved.setting: moved.commit for moved in result.moved_revisions}
    lines = []
    for named in result.plan.revisions:
        revision = f"Revision {named.name} of {named.id}"
        sentence = f"{revision} is commit {named.commit}; frozen in the plan."
        if named.setting in now:
            sentence = (
                f"{revision} was commit {named.commit} when the run was planned, which stays; "
                f"it is {now[named.setting]} now. For its images, set another run_id."
            )
        lines.append(f"\n{sanitize_line(sentence)}")
    return "".join(lines)


def format_scores(job: "Job") -> str:
    """By what images are scored, and which remain, on a line of its own; empty without scores."""
    if not job.scores:
        return ""
    scores = [f"{name} ({describe_score(score)})" for name, score in job.scores.items()]
    sentence = f"Scores: {', '.join(scores)}; their time is not in estimates."
    if job.keep is not None:
        each = job.defaults.images_per_prompt
        made = f"{each} images of each row, each the best" if each > 1 else "Keeps the best"
        sentence += f" {made} of {job.keep.of} candidates by {job.keep.by}"
        sentence += f": {each * job.keep.of} candidates, {each} kept." if each > 1 else "."
    return f"\n{sanitize_line(sentence)}"


def format_passes(job: "Job", stored_size: tuple[int, int] | None) -> str:
    """What is done to images before they are stored, on a line of its own; empty without passes."""
    if not job.passes:
        return ""
    passes = [f"{name} ({describe_pass(settings)})" for name, settings in job.passes.items()]
    sentence = f"Passes: {', '.join(passes)}."
    if job.alters_images and stored_size is not None:
        width, height = stored_size
        sentence += f" Images of the default size are stored at {width} x {height}."
    if any(not isinstance(settings, RefinePass) for settings in job.passes.values()):
        sentence += " Until a run is measured, estimates count only the steps of diffusion."
    if any(iter_pass_jobs(job)):
        sentence += (
            " Until a run is measured, estimates take a step of another model to be as slow as "
            "one of the job's own."
        )
    return f"\n{sanitize_line(sentence)}"


def _format_columns(result: "PlanResult | Estimate") -> str:
    """What templates make, which columns are read as ours or not at all, and notes, by lines."""
    lines = []
    if result.made_prompts is not None:
        lines.append(f"Templates make {result.made_prompts}.")
    if result.guessed_columns:
        names = ", ".join(
            f"{cut_name(theirs)!r} as {ours}" for theirs, ours in result.guessed_columns.items()
        )
        lines.append(f"Read: {names}. `columns` sets others, or null for one that is not meant.")
    if result.unused_columns:
        shown = result.unused_columns[:MAX_UNUSED_COLUMNS]
        names = ", ".join(cut_name(name) or "one without a name" for name in shown)
        omitted = len(result.unused_columns) - MAX_UNUSED_COLUMNS
        more = f" and {omitted} more" if omitted > 0 else ""
        lines.append(
            f"Not used: {names}{more}. If one is an id or a setting, map it in `columns`; `carry` "
            "keeps it."
        )
    lines += result.notes
    return "".join(f"\n{sanitize_line(line)}" for line in lines)


def format_retry_plan(result: "PlanResult") -> str:
    """The plan of a retry, or of the missing parts that come before it."""
    if not result.plan.shards:
        return f"Nothing left to retry: {sanitize_line(result.uri)}"
    if not result.plan.retry:
        first = "Parts of this run are missing, and are made first. Retry again for failed images."
        return f"{first}\n{format_plan(result)}"
    return format_plan(result)


def _format_batches(plan: "Plan") -> str:
    """The batch sizes, where the job asks for tuned ones."""
    batch = plan.job.batch
    if batch.images is not None or batch.tuning is None:
        return ""
    if not plan.batch_sizes:
        return (
            f"\nBatches of {plan.max_batch_size} images: no tuning entry fits this model, dtype, "
            "speed and GPU. `imagekiln tune` measures one."
        )
    sizes = [f"{size.images} of {size.width} x {size.height}" for size in plan.batch_sizes]
    more = ", ..." if len(sizes) > MAX_SIZES else ""
    return f"\nBatches: {', '.join(sizes[:MAX_SIZES])}{more}."


def format_estimate(result: "Estimate") -> str:
    """What a job would generate, and what that takes."""
    omitted = pluralize(result.duplicate_images, "duplicate")
    if result.existing_images:
        omitted += f" and {result.existing_images:,} already in earlier runs"

    lines = {
        "rows": f"{result.rows:,} ({result.rejected_rows:,} rejected)",
        "images": f"{result.images:,} ({omitted} omitted)",
        "truncated": _format_truncated(result.truncated_prompts),
        "shards": f"{result.shards:,} ({pluralize(result.parts, 'part')} in all)",
        "drawn with": sanitize_line(result.defaults),
        "size": f"about {format_bytes(result.gigabytes * BYTES_PER_GIGABYTE)}",
    }
    if result.weights_bytes is not None:
        lines["weights"] = f"{format_bytes(result.weights_bytes)} once loaded"
    if result.prompts_to_rewrite:
        prompts = pluralize(result.prompts_to_rewrite, "prompt")
        lines["rewriting"] = f"{prompts}, before planning; not included in the figures below"
    lines |= _time_lines(result)
    table = format_table(lines, width=max(MIN_NAME_WIDTH, *map(len, lines)))
    duplicates = _format_duplicates(result.duplicate_images, result.images)
    planned = "" if result.planned_run is None else f"\n{sanitize_line(result.planned_run)}"
    return f"{table}{_format_causes(result)}{duplicates}{_format_columns(result)}{planned}"


def _format_duplicates(duplicates: int, images: int) -> str:
    """What duplicates are, where so many are omitted that it may be a surprise."""
    if duplicates <= MAX_DUPLICATE_SHARE * images:
        return ""
    return (
        "\nDuplicates have the prompt, the settings and the seed of an earlier row. Equal rows "
        "with the same id, or without one, have one seed. For an image of each row, give each an "
        "id of its own; `columns: {id: sku}` names the column."
    )


def _format_truncated(prompts: int) -> str:
    truncated = pluralize(prompts, "prompt")
    return f"{truncated}, which have more tokens than the model reads" if prompts else truncated


def _format_causes(result: "Estimate") -> str:
    """Why rows are rejected."""
    if not result.rejection_causes:
        return ""
    return f"\nRejected:{_list_causes(result.rejection_causes)}"


def _time_lines(result: "Estimate") -> dict[str, str]:
    """How long it takes and what that costs, or why that is not known."""
    from imagekiln.steps.plan.run_time import HOW_TO_MEASURE, device_noun, format_both

    noun = device_noun(result.device)
    unit = f"{noun}-hours"
    if result.gpu_hours is None or result.hours is None or result.gpus is None:
        lines = {unit: f"unknown; {HOW_TO_MEASURE}; or run a sample of the rows under this output"}
        if result.price_per_hour is not None:
            lines["cost"] = f"unknown without the {unit}"
        return lines

    source = sanitize_line(result.time_source or "")
    lines = {
        unit: f"{result.gpu_hours:,.2f} ({source})",
        "time": f"about {format_both(result.gpu_hours, result.hours, result.gpus, noun)}",
    }
    if not result.is_measured:
        lines["other GPUs"] = _format_other_gpus(result.gpu_hours)
    if result.cost is not None and result.price_per_hour is not None:
        lines["cost"] = _format_cost(result.cost, result.price_per_hour, result)
    if result.over_budget is not None:
        note = "" if result.is_firm else f". {NO_REFUSAL}"
        lines["budget"] = f"exceeded: {result.over_budget}{note}"
    return lines


def _format_cost(cost: float, per_hour: float, result: "Estimate") -> str:
    """What the job costs, and the price that this is by."""
    from imagekiln.steps.plan.run_time import device_noun

    source = sanitize_line(result.price_source or "")
    if result.is_highest_price:
        return f"up to {format_money(cost)} (highest price of the table: {source})"
    price = f"{format_money(per_hour)} per {device_noun(result.device)}-hour"
    return f"{format_money(cost)} (at {price}: {source})"


def _format_other_gpus(h100_hours: float) -> str:
    """The GPU-hours of other GPUs, by their data sheets."""
    from imagekiln.steps.models.performance import GPU_SPEEDS

    hours = [f"{gpu} {format_number(h100_hours / speed)}" for gpu, speed in GPU_SPEEDS.items()]
    return f"{', '.join(hours)} GPU-hours, by NVIDIA's data sheets"


STOP_REASONS = {
    "saturated": "larger batches are no faster",
    "memory": "larger batches do not fit in memory",
    "largest": "the largest batch that is tried",
    "time": "the time limit was reached",
}


def format_tuning(result: "TuningResult") -> str:
    """The batch for each size, with what was measured, and the file that holds it."""
    lines = []
    if not result.measured:
        lines.append("Measured before; --again measures it anew.")
    lines += map(_format_tuning_entry, result.entries)
    lines.append(f"Tuning file: {sanitize_line(result.file)}")
    lines.append("Name it in the job as batch.tuning.")
    return "\n".join(lines)


def _format_tuning_entry(entry: "TuningEntry") -> str:
    size = f"{entry.width} x {entry.height} on {sanitize_line(entry.gpu)}"
    batch = f"batches of {pluralize(entry.batch, 'image')}"
    reason = STOP_REASONS[entry.stopped]
    lines = [f"{size}: {batch}, {entry.seconds_per_image:.3g} s per image ({reason})."]
    for rate in entry.measured:
        memory = "" if rate.peak_gib is None else f"{rate.peak_gib:9.1f} GiB"
        lines.append(f"  batch {rate.batch:3} {rate.images_per_second:10.3g} images/s{memory}")
    return "\n".join(lines)
