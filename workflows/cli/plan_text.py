"""A job before it is carried out as text: its plan, estimate and batch sizes."""

from dataclasses import replace
from typing import TYPE_CHECKING

from imagekiln.steps.errors import cut_name
from imagekiln.steps.job.passes import RefinePass, describe_pass
from imagekiln.steps.job.scores import describe_score
from imagekiln.steps.job.user_checks import find_untried_entries
from imagekiln.steps.models.facts import describe_defaults
from imagekiln.steps.models.performance import GPU_SPEEDS
from imagekiln.steps.runs.keys import rejected_key
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_money,
    format_number,
    pluralize,
)
from imagekiln.steps.runtime.sanitize import sanitize_line
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
    """Print that the input is another, the budget may not do, or own functions do not import."""
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
    """A plan in a few lines, with its time on so many GPUs, if that is known.

    With `cluster_gpus`, which a cluster gives it, the time is that on one GPU and on those.
    """
    plan = result.plan
    counts = plan.counts
    lines = [_count_images(result)]
    if counts.rejected_rows:
        lines += _describe_rejections(result)
    lines += _describe_duplicates(counts.duplicate_images, counts.images)
    lines += _describe_revisions(result)
    lines += _describe_columns(result)
    defaults = describe_defaults(plan.job, plan.model)
    if plan.model.own.source in defaults:
        lines.append(f"Draws {defaults}.")
    lines += _describe_batches(plan)
    lines += describe_job(plan.job, plan.pass_sizes.final((plan.width, plan.height)))
    if result.time is not None and counts.images:
        lines.append(_describe_time(result, gpus, cluster_gpus))
    return "\n".join(map(sanitize_line, lines))


def _count_images(result: "PlanResult") -> str:
    """The images of a plan, what was left out of it, and where it is."""
    counts = result.plan.counts
    verb = "Reused the plan of" if result.adopted else "Planned"
    images = f"{pluralize(counts.images, 'image')} in {pluralize(len(result.plan.shards), 'shard')}"
    if result.plan.sample_images:
        images += f", the first a sample of {result.plan.sample_images}"
    truncated = pluralize(counts.truncated_prompts, "prompt")
    extras = (
        (counts.rejected_rows, f", {pluralize(counts.rejected_rows, 'row')} rejected"),
        (counts.duplicate_images, f", {pluralize(counts.duplicate_images, 'duplicate')} omitted"),
        (counts.existing_images, f", {counts.existing_images:,} already in earlier runs"),
        (counts.truncated_prompts, f", {truncated} truncated by the model"),
    )
    extra = "".join(phrase for count, phrase in extras if count)
    return f"{verb} {images}{extra}: {result.uri}"


def _describe_rejections(result: "PlanResult") -> list[str]:
    """The list of rejected rows, and the reasons."""
    line = f"Rejected rows are listed in {result.uri}/{rejected_key(result.plan.rejected)}."
    if not result.rejection_causes:
        return [line]
    return [f"{line} Reasons:", *_list_causes(result.rejection_causes)]


def _list_causes(causes: "tuple[RejectionCause, ...]") -> list[str]:
    from imagekiln.steps.plan.draft import describe_causes

    return [f"  {line}" for line in describe_causes(causes)]


def _describe_duplicates(duplicates: int, images: int) -> list[str]:
    """Explain duplicates if many are omitted."""
    if duplicates <= MAX_DUPLICATE_SHARE * images:
        return []
    return [
        "Duplicates have the prompt, the settings and the seed of an earlier row. Equal rows "
        "with the same id, or without one, have one seed. For an image of each row, give each an "
        "id of its own; `columns: {id: sku}` names the column."
    ]


def _describe_time(result: "PlanResult", gpus: int, cluster_gpus: int | None) -> str:
    if result.time is None:
        return ""
    if cluster_gpus is not None:
        return result.time.describe_both(cluster_gpus)
    # Here, devices share the parts of a shard.
    plan = result.plan
    parts = sum(plan.part_count(shard) for shard in range(len(plan.shards)))
    device = "cpu" if plan.job.device == "cpu" else result.time.device
    return replace(result.time, shards=parts, device=device).describe(gpus)


def _describe_revisions(result: "PlanResult") -> list[str]:
    """The commits of branches and tags, and those that have moved since."""
    now = {moved.setting: moved.commit for moved in result.moved_revisions}
    lines = []
    for named in result.plan.revisions:
        revision = f"Revision {named.name} of {named.id}"
        line = f"{revision} is commit {named.commit}; frozen in the plan."
        if named.setting in now:
            line = (
                f"{revision} was commit {named.commit} when the run was planned, which stays; "
                f"it is {now[named.setting]} now. For its images, set another run_id."
            )
        lines.append(line)
    return lines


def describe_job(job: "Job", stored_size: tuple[int, int] | None) -> list[str]:
    """The scores and the passes of a job, a line for each."""
    lines = []
    if job.scores:
        scores = [f"{name} ({describe_score(score)})" for name, score in job.scores.items()]
        line = f"Scores: {', '.join(scores)}; their time is not in estimates."
        if job.keep is not None:
            each = job.defaults.images_per_prompt
            line += f" Keeps {each} of {each * job.keep.of} candidates by {job.keep.by}."
        lines.append(line)
    if job.passes:
        passes = [f"{name} ({describe_pass(each)})" for name, each in job.passes.items()]
        line = f"Passes: {', '.join(passes)}."
        if job.alters_images and stored_size is not None:
            width, height = stored_size
            line += f" Images of the default size are stored at {width} x {height}."
        if any(not isinstance(each, RefinePass) or each.model for each in job.passes.values()):
            line += " Until a run is measured, estimates do not know the time of other models."
        lines.append(line)
    return [sanitize_line(line) for line in lines]


def _describe_columns(result: "PlanResult | Estimate") -> list[str]:
    """Prompts from templates, guessed and unused columns, and notes."""
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
    return [*lines, *result.notes]


def format_retry_plan(result: "PlanResult") -> str:
    """The plan of a retry, or of the missing parts that come before it."""
    if not result.plan.shards:
        return f"Nothing left to retry: {sanitize_line(result.uri)}"
    if result.plan.retry:
        return format_plan(result)
    first = "Parts of this run are missing, and are made first. Retry again for failed images."
    return f"{first}\n{format_plan(result)}"


def _describe_batches(plan: "Plan") -> list[str]:
    """The batch sizes, if the job asks for tuned ones."""
    batch = plan.job.batch
    if batch.images is not None or batch.tuning is None:
        return []
    if not plan.batch_sizes:
        return [
            f"Batches of {plan.max_batch_size} images: no tuning entry fits this model, dtype, "
            "speed and GPU. `imagekiln tune` measures one."
        ]
    sizes = [f"{size.images} of {size.width} x {size.height}" for size in plan.batch_sizes]
    more = ", ..." if len(sizes) > MAX_SIZES else ""
    return [f"Batches: {', '.join(sizes[:MAX_SIZES])}{more}."]


def format_estimate(result: "Estimate") -> str:
    """The size of a job's dataset, and the time and cost of it."""
    omitted = pluralize(result.duplicate_images, "duplicate")
    if result.existing_images:
        omitted += f" and {result.existing_images:,} already in earlier runs"
    truncated = pluralize(result.truncated_prompts, "prompt")
    if result.truncated_prompts:
        truncated += ", which have more tokens than the model reads"
    size = f"about {format_bytes(result.gigabytes * BYTES_PER_GIGABYTE)}"
    if result.export_gigabytes:
        size += f", and {format_bytes(result.export_gigabytes * BYTES_PER_GIGABYTE)} of exports"
    weights, rewriting = "", ""
    if result.weights_bytes is not None:
        weights = f"{format_bytes(result.weights_bytes)} once loaded"
    if result.prompts_to_rewrite:
        prompts = pluralize(result.prompts_to_rewrite, "prompt")
        rewriting = f"{prompts}, before planning; not included in the figures below"

    table = {
        "rows": f"{result.rows:,} ({result.rejected_rows:,} rejected)",
        "images": f"{result.images:,} ({omitted} omitted)",
        "truncated": truncated,
        "shards": f"{result.shards:,} ({pluralize(result.parts, 'part')} in all)",
        "drawn with": result.defaults,
        "size": size,
        "weights": weights,
        "rewriting": rewriting,
        **_time_lines(result),
    }
    lines = []
    if result.rejection_causes:
        lines += ["Rejected:", *_list_causes(result.rejection_causes)]
    lines += _describe_duplicates(result.duplicate_images, result.images)
    lines += _describe_columns(result)
    if result.planned_run is not None:
        lines.append(result.planned_run)
    safe = {name: sanitize_line(value) for name, value in table.items()}
    return "\n".join([format_table(safe, MIN_NAME_WIDTH), *map(sanitize_line, lines)])


def _time_lines(result: "Estimate") -> dict[str, str]:
    """The time and its cost, or why they are not known."""
    from imagekiln.steps.plan.run_time import HOW_TO_MEASURE, device_noun, format_both

    noun = device_noun(result.device)
    unit = f"{noun}-hours"
    if result.gpu_hours is None or result.hours is None or result.gpus is None:
        unknown = f"unknown; {HOW_TO_MEASURE}; or run a sample of the rows under this output"
        cost = "" if result.price_per_hour is None else f"unknown without the {unit}"
        return {unit: unknown, "cost": cost}

    lines = {
        unit: f"{result.gpu_hours:,.2f} ({result.time_source})",
        "time": f"about {format_both(result.gpu_hours, result.hours, result.gpus, noun)}",
    }
    if not result.is_measured:
        lines["other GPUs"] = _compare_gpus(result.gpu_hours)
    if result.cost is not None and result.price_per_hour is not None:
        price = f"at {format_money(result.price_per_hour)} per {noun}-hour: {result.price_source}"
        lines["cost"] = f"{format_money(result.cost)} ({price})"
        if result.is_highest_price:
            price = f"highest price of the table: {result.price_source}"
            lines["cost"] = f"up to {format_money(result.cost)} ({price})"
    if result.over_budget is not None:
        note = "" if result.is_firm else f". {NO_REFUSAL}"
        lines["budget"] = f"exceeded: {result.over_budget}{note}"
    return lines


def _compare_gpus(h100_hours: float) -> str:
    hours = [f"{gpu} {format_number(h100_hours / speed)}" for gpu, speed in GPU_SPEEDS.items()]
    return f"{', '.join(hours)} GPU-hours, by NVIDIA's data sheets"


def format_tuning(result: "TuningResult") -> str:
    """The batch for each size, with what was measured, and the file that holds it."""
    lines = [] if result.measured else ["Measured before; --again measures it anew."]
    for entry in result.entries:
        lines += _describe_tuning(entry)
    lines.append(f"Tuning file: {result.file}")
    lines.append("Name it in the job as batch.tuning.")
    return "\n".join(map(sanitize_line, lines))


def _describe_tuning(entry: "TuningEntry") -> list[str]:
    size = f"{entry.width} x {entry.height} on {entry.gpu}"
    batch = f"batches of {pluralize(entry.batch, 'image')}"
    lines = [f"{size}: {batch}, {entry.seconds_per_image:.3g} s per image."]
    for rate in entry.measured:
        memory = "" if rate.peak_gib is None else f"{rate.peak_gib:9.1f} GiB"
        lines.append(f"  batch {rate.batch:3} {rate.images_per_second:10.3g} images/s{memory}")
    return lines
