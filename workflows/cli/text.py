"""Formatting of results for people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, cast

from imagekiln.steps.errors import cut_name
from imagekiln.steps.runs.keys import REPORT_KEY, rejected_key
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_device_hours,
    format_duration,
    format_money,
    format_number,
    format_time,
    pluralize,
)
from imagekiln.steps.runtime.sanitize import format_command, sanitize_line

if TYPE_CHECKING:  # imported by the commands; a pod that generates needs few
    from _typeshed import DataclassInstance

    from imagekiln.steps.aggregate.preview import Preview
    from imagekiln.steps.aggregate.summary import Summary
    from imagekiln.steps.job.tuning_file import TuningResult
    from imagekiln.steps.local import RunResult
    from imagekiln.steps.maintain.forget import ForgetResult
    from imagekiln.steps.maintain.gc import GcResult
    from imagekiln.steps.maintain.retry import RetryResult
    from imagekiln.steps.maintain.run_list import RunOverview
    from imagekiln.steps.plan.estimate import Estimate
    from imagekiln.steps.plan.step import PlanResult
    from imagekiln.steps.runs.stats import ShardStats

MAX_NAMES = 8
BYTES_PER_GIGABYTE = 1e9


def format_fields(result: object) -> str:
    """Format a result as a table, with a line for each field that has a value."""
    return format_table(dict(_field_texts(result)))


def format_table(lines: Mapping[str, str]) -> str:
    """Format names and values as aligned lines, without empty values."""
    shown = {name: sanitize_line(value) for name, value in lines.items() if value}
    width = max(map(len, shown)) + 2
    return "\n".join(f"{name + ':':<{width}}{value}" for name, value in shown.items())


def format_rows(rows: Sequence[Mapping[str, str]]) -> str:
    """Format rows as a table with column names, without empty columns."""
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    cells = [names, *([sanitize_line(row[name]) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
    return "\n".join(lines)


def _field_texts(result: object) -> Iterator[tuple[str, str]]:
    for field in fields(cast("DataclassInstance", result)):
        yield field.name.replace("_", " "), _format_value(getattr(result, field.name))


def _format_value(value: object) -> str:
    """Format a value in one line; empty if there is none."""
    if value is None:
        return ""
    if is_dataclass(value):
        return ", ".join(f"{name} {text}" for name, text in _field_texts(value) if text)
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in value.items())
    if isinstance(value, tuple):
        return "; ".join(map(_format_value, value))
    if isinstance(value, int):
        return f"{value:,}"
    return format_number(value) if isinstance(value, float) else str(value)


def format_plan(result: "PlanResult", gpus: int = 1, cluster_gpus: int | None = None) -> str:
    """Format a plan in a few lines, with its estimated time on `gpus` GPUs.

    With `cluster_gpus`, the number of GPUs on a cluster, the time is given for one GPU and for that
    number.
    """
    from imagekiln.steps.job.user_checks import find_untried_entries

    plan = result.plan
    counts = plan.counts
    lines = [_count_images(result)]
    if counts.rejected_rows:
        listed = rejected_key(plan.rejected)
        lines.append(f"Rejected rows are listed in {result.uri}/{listed}.")
    lines += _describe_input(result)
    lines += _describe_revisions(result)
    if plan.job.batch.tuning and not plan.job.batch.images and not plan.batch_sizes:
        lines.append("No tuning entry fits this model, dtype, speed and GPU: run `imagekiln tune`.")
    if result.time is not None and counts.images:
        # On this machine, devices share the parts of a shard.
        here = replace(result.time, shards=gpus).describe(gpus)
        lines.append(here if cluster_gpus is None else result.time.describe(cluster_gpus))
    if result.over_budget is not None:
        lines.append(f"Budget exceeded by the estimate: {result.over_budget}.")
    lines += [*filter(None, [result.input_change]), *find_untried_entries(plan.job)]
    return "\n".join(map(sanitize_line, lines))


def _count_images(result: "PlanResult") -> str:
    """Format the images of a plan, the rows it leaves out, and its location."""
    plan = result.plan
    counts = plan.counts
    verb = "Reused the plan of" if result.adopted else "Planned"
    images = f"{pluralize(counts.images, 'image')} in {pluralize(len(plan.shards), 'shard')}"
    extras = (
        (plan.sample_images, f"the first a sample of {plan.sample_images}"),
        (counts.rejected_rows, f"{pluralize(counts.rejected_rows, 'row')} rejected"),
        (counts.duplicate_images, f"{pluralize(counts.duplicate_images, 'duplicate')} omitted"),
        (counts.existing_images, f"{counts.existing_images:,} already in earlier runs"),
        (
            counts.truncated_prompts,
            f"{pluralize(counts.truncated_prompts, 'prompt')} truncated by the model",
        ),
    )
    phrases = [images, *(phrase for count, phrase in extras if count)]
    return f"{verb} {', '.join(phrases)}: {result.uri}"


def _describe_revisions(result: "PlanResult") -> list[str]:
    """List the commits of branches and tags, and those that have moved since."""
    frozen = [
        f"Revision {named.name} of {named.id} is commit {named.commit}; frozen in the plan."
        for named in result.plan.revisions
    ]
    moved = [
        f"Revision {moved.name} of {moved.id} has moved to {moved.commit} since. For images of "
        "that, set another run_id."
        for moved in result.moved_revisions
    ]
    return [*frozen, *moved]


def _describe_input(result: "PlanResult | Estimate") -> list[str]:
    """List reasons of rejections, prompts from templates, guessed and unused columns, and notes."""
    from imagekiln.steps.plan.draft import describe_causes

    lines: list[str] = []
    if result.rejection_causes:
        lines += ["Rejected:", *(f"  {each}" for each in describe_causes(result.rejection_causes))]
    if result.made_prompts is not None:
        lines.append(f"Templates make {result.made_prompts}.")
    if result.guessed_columns:
        names = ", ".join(
            f"{cut_name(theirs)!r} as {ours}" for theirs, ours in result.guessed_columns.items()
        )
        lines.append(f"Read: {names}. `columns` sets others, or null for one that is not meant.")
    if result.unused_columns:
        names = ", ".join(cut_name(name) for name in result.unused_columns[:MAX_NAMES])
        more = ", ..." if len(result.unused_columns) > MAX_NAMES else ""
        lines.append(f"Not used: {names}{more}. Map settings in `columns`; `carry` keeps others.")
    return [*lines, *result.notes]


def format_estimate(result: "Estimate") -> str:
    """Format the size of a job's dataset, and its time and cost."""
    from imagekiln.steps.models.placement import PLACEMENTS

    omitted = pluralize(result.duplicate_images, "duplicate")
    if result.existing_images:
        omitted += f" and {result.existing_images:,} already in earlier runs"
    size = f"about {format_bytes(result.gigabytes * BYTES_PER_GIGABYTE)}"
    if result.export_gigabytes:
        size += f", and {format_bytes(result.export_gigabytes * BYTES_PER_GIGABYTE)} of exports"
    truncated, weights, rewriting = "", "", ""
    if result.truncated_prompts:
        truncated = pluralize(result.truncated_prompts, "prompt")
    if result.weights_bytes is not None:
        weights = f"{format_bytes(result.weights_bytes)} once loaded"
        if result.placement is not None:
            weights += f", {PLACEMENTS[result.placement]}"
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
    lines = [*_describe_input(result)]
    return "\n".join([format_table(table), *map(sanitize_line, lines)])


def _time_lines(result: "Estimate") -> dict[str, str]:
    """Return the time and its cost, or the reason why they are unknown."""
    from imagekiln.steps.plan.estimate import HOW_TO_MEASURE, device_noun, format_hours

    noun = device_noun(result.device)
    unit = f"{noun}-hours"
    if result.gpu_hours is None or result.hours is None or result.gpus is None:
        return {unit: f"unknown; {HOW_TO_MEASURE}; or run a sample of the rows under this output"}

    lines = {
        unit: f"{result.gpu_hours:,.2f} ({result.time_source})",
        "time": f"about {format_hours(result.hours, result.gpus, noun)}",
    }
    if not result.is_measured:
        lines["other GPUs"] = _compare_gpus(result.gpu_hours)
    if result.cost is not None and result.price_per_hour is not None:
        limit = "up to " if result.is_highest_price else ""
        price = f"{format_money(result.price_per_hour)} per {noun}-hour: {result.price_source}"
        lines["cost"] = f"{limit}{format_money(result.cost)} (at {price})"
    if result.over_budget is not None:
        lines["budget"] = f"exceeded: {result.over_budget}"
    return lines


def _compare_gpus(h100_hours: float) -> str:
    from imagekiln.steps.models.performance import GPU_SPEEDS

    hours = [f"{gpu} {format_number(h100_hours / speed)}" for gpu, speed in GPU_SPEEDS.items()]
    return f"{', '.join(hours)} GPU-hours, by NVIDIA's data sheets"


def format_tuning(result: "TuningResult") -> str:
    """Format the batch size for each image size, and the file that holds them."""
    rows = [
        {
            "size": f"{entry.width} x {entry.height}",
            "GPU": entry.gpu,
            "batch": f"{entry.batch}",
            "s per image": f"{entry.seconds_per_image:.3g}",
        }
        for entry in result.entries
    ]
    measured = "" if result.measured else "Measured before; --again measures it anew.\n"
    file = sanitize_line(f"Tuning file: {result.file}. Name it in the job as batch.tuning.")
    return f"{measured}{format_rows(rows)}\n{file}"


def format_images(statuses: Mapping[str, int]) -> str:
    """Format the stored images, and the number of others by status."""
    images = pluralize(statuses.get("ok", 0), "image")
    others = ", ".join(_list_others(statuses))
    return f"{images} ({others})" if others else images


def _list_others(statuses: Mapping[str, int]) -> list[str]:
    return [f"{count:,} {status}" for status, count in statuses.items() if status != "ok"]


def format_shard(result: "ShardStats | None") -> str:
    """Format the images of a shard and their speed."""
    if result is None:
        return "Nothing is missing."
    images = pluralize(result.images, "image")
    speed = f"{result.images_per_second:.2f} images/s on {result.device}"
    return f"Shard {result.shard}: {images}, {speed}."


def format_summary(result: "Summary") -> str:
    """Format the numbers of a run's images."""
    from imagekiln.steps.aggregate.verdict import describe_rejected

    ok = f"{result.ok:,} of {result.ok + result.not_ok:,} images are ok"
    if not result.images:
        ok = "nothing new to generate"
        if result.existing_images:
            there = pluralize(result.existing_images, "image is", "images are")
            ok = f"{ok}, {there} in earlier runs already"
    marks = [f"{count:,} marked {gate}" for gate, count in result.marks.items() if count]
    rejected = describe_rejected(result)
    counts = ", ".join(filter(None, [ok, *_list_others(result.statuses), *marks, rejected]))
    return f"{sanitize_line(result.run_id)}: {counts}."


def format_run(result: "RunResult") -> str:
    """Format a finished run, with the locations of its results."""
    lines = [
        format_summary(result.summary),
        f"Dataset: {result.uri}",
        f"Report:  {result.uri}/{REPORT_KEY}",
    ]
    if costs := _format_costs(result.summary):
        lines.append(f"Took:    {costs}")
    lines += [f"Export:  {export.uri}" for export in result.exports]
    if result.before:
        lines.insert(0, "Already finished; nothing to do.")
    return "\n".join(map(sanitize_line, lines))


def _format_costs(result: "Summary") -> str:
    """Format the time and the price of a run; empty if unknown."""
    if not result.device_seconds:
        return ""
    parts = [f"{format_duration(result.device_seconds)} of device time"]
    if result.cost is not None:
        parts.append(f"cost {format_money(result.cost)}")
    return ", ".join(parts)


def format_preview(result: "Preview") -> str:
    """Format a sample, with the locations of its results."""
    from imagekiln.steps.aggregate.verdict import describe_ok

    planned = pluralize(result.planned_images, "is planned", "are planned")
    return (
        f"Preview: {describe_ok(result.summary)}, as the job asks. {planned}.\n"
        f"Page: {sanitize_line(result.page)}\n"
        "They are part of the run: run or submit the job, and it makes the others."
    )


def format_retry(result: "RetryResult") -> str:
    """Format a run after a retry, and the failures that a retry does not fix."""
    from imagekiln.steps.aggregate.verdict import describe_permanent_failures

    done = "Nothing left to retry"
    if result.images:
        name = f"Retry {result.retry}" if result.retry else "Missing parts"
        done = f"{name}: {pluralize(result.images, 'image')}"
    text = f"{done}. {format_summary(result.summary)}"
    if permanent := describe_permanent_failures(result.summary):
        again = sanitize_line(f"{format_command('retry', result.uri)} --all")
        return f"{text}\n{permanent}To retry them anyway: {again}"
    return text


def format_runs(runs: "Sequence[RunOverview]") -> str:
    """Format runs as a table, with the time of planning."""
    return format_rows([_run_row(run) for run in runs]) if runs else "No runs."


def _run_row(run: "RunOverview") -> dict[str, str]:
    state: str = run.state
    if run.exceeded_gates:
        state = f"{state}, gates: {', '.join(run.exceeded_gates)}"
    unmade = pluralize(run.images, "planned image")
    return {
        "run": run.run_id,
        "planned": format_time(run.created_at.timestamp()),
        "state": state,
        "images": unmade if run.ok is None else format_images(run.statuses),
        "time": format_duration(run.elapsed_seconds) if run.elapsed_seconds else "",
        "spent": format_device_hours(run.device_hours) if run.device_hours else "",
        "cost": "" if run.cost is None else format_money(run.cost),
    }


def format_forgotten(result: "ForgetResult") -> str:
    """Format the selected images of each run, and the next command."""
    verb = "forgotten" if result.removed else "selected"
    lines = [
        f"{sanitize_line(run.uri)}: {pluralize(run.images, 'planned image')} {verb}"
        for run in result.runs
        if run.images
    ]
    if not lines:
        lines.append(f"No image of {pluralize(len(result.runs), 'run')} matches.")
    elif not result.removed:
        lines.append("To remove them for good, add --remove.")
    else:
        lines.append("Exports not named keep them, and jobs without skip_existing make them again.")
    if result.unknown_ids:
        more = ", ..." if len(result.unknown_ids) > MAX_NAMES else ""
        names = ", ".join(result.unknown_ids[:MAX_NAMES])
        lines.append(f"No image here, and no row that one was made for, has the id {names}{more}.")
    return "\n".join(map(sanitize_line, lines))


def format_garbage(result: "GcResult") -> str:
    """Format removed or removable runs, and their total."""
    lines = ["No unfinished run is older than --older-than (7 days by default)."]
    if result.found:
        verb = "Removed" if result.removed else "To remove with --remove"
        rows = [
            {
                "run": garbage.run,
                "objects": f"{garbage.objects:,}",
                "size": format_bytes(garbage.bytes),
                "untouched": pluralize(round(garbage.days), "day"),
            }
            for garbage in result.found
        ]
        lines = [format_rows(rows), f"{verb}: {format_bytes(result.bytes)}"]
    return "\n".join(lines)
