"""Results as text for people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, cast

from imagekiln.steps.runs.keys import REPORT_KEY, SUCCESS_KEY
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_device_hours,
    format_duration,
    format_estimate_error,
    format_money,
    format_number,
    format_percent,
    format_time,
    pluralize,
)
from imagekiln.steps.runtime.sanitize import format_command, sanitize_line

if TYPE_CHECKING:  # the commands bring them; a pod that generates needs few
    from _typeshed import DataclassInstance

    from imagekiln.steps.aggregate.preview import Preview
    from imagekiln.steps.aggregate.summary import Summary
    from imagekiln.steps.local import RunResult
    from imagekiln.steps.maintain.forget import ForgetResult
    from imagekiln.steps.maintain.gc import GcResult
    from imagekiln.steps.maintain.retry import RetryResult
    from imagekiln.steps.maintain.run_list import RunOverview
    from imagekiln.steps.runs.stats import ShardStats

MAX_CAUSES = 5
MAX_SHOWN_IDS = 5


def format_fields(result: object) -> str:
    """A result as a table, with a line for each field that has a value."""
    return format_table(dict(_field_texts(result)))


def format_table(lines: Mapping[str, str], min_width: int = 0) -> str:
    """A name and a value a line, the values one under the other; without values that are empty."""
    shown = {name: value for name, value in lines.items() if value}
    width = max([min_width, *map(len, shown)])
    return "\n".join(f"{name + ':':<{width + 2}}{value}" for name, value in shown.items())


def format_rows(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows under the names of their columns, without columns that are empty."""
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    cells = [names, *([sanitize_line(row[name]) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
    return "\n".join(lines)


def _field_texts(result: object) -> Iterator[tuple[str, str]]:
    for field in fields(cast("DataclassInstance", result)):
        yield field.name.replace("_", " "), _format_value(getattr(result, field.name))


def _format_value(value: object) -> str:
    """A value in a line; empty if there is none."""
    if value is None:
        return ""
    if is_dataclass(value):
        return ", ".join(f"{name} {text}" for name, text in _field_texts(value) if text)
    if isinstance(value, dict):
        return ", ".join(sanitize_line(f"{name} {text}") for name, text in value.items())
    if isinstance(value, tuple):
        return "; ".join(map(_format_value, value))
    if isinstance(value, int):
        return f"{value:,}"
    return format_number(value) if isinstance(value, float) else sanitize_line(str(value))


def format_images(statuses: Mapping[str, int]) -> str:
    """The stored images, and how many others there are by status."""
    images = pluralize(statuses.get("ok", 0), "image")
    others = _list_others(statuses)
    return f"{images} ({', '.join(others)})" if others else images


def _list_others(statuses: Mapping[str, int]) -> list[str]:
    return [f"{count:,} {status}" for status, count in statuses.items() if status != "ok"]


def format_shard(result: "ShardStats | None") -> str:
    """The images of a shard and their speed."""
    if result is None:
        return "Nothing is missing."
    images = pluralize(result.images, "image")
    text = f"Shard {result.shard}: {images}, {result.images_per_second:.2f} images/s"
    busy = result.busy_share
    share = "" if busy is None else f", busy {format_percent(busy)} of the time"
    return f"{text} on {result.device}{share}."


def format_summary(result: "Summary") -> str:
    """The numbers of a run's images."""
    from imagekiln.steps.aggregate.verdict import describe_rejected

    ok = f"{result.ok:,} of {result.ok + result.not_ok:,} images are ok"
    if not result.images:
        ok = "no images to generate"
        if result.existing_images:
            there = pluralize(result.existing_images, "image is", "images are")
            ok = f"nothing new to generate, {there} in earlier runs already"
    marks = [f"{count:,} marked {gate}" for gate, count in result.marks.items() if count]
    rejected = describe_rejected(result)
    counts = ", ".join(filter(None, [ok, *_list_others(result.statuses), *marks, rejected]))
    return f"{sanitize_line(result.run_id)}: {counts}."


def format_run(result: "RunResult") -> str:
    """A finished run, and where to look."""
    lines = [
        format_summary(result.summary),
        f"Dataset: {sanitize_line(result.uri)}",
        f"Report:  {sanitize_line(f'{result.uri}/{REPORT_KEY}')}",
    ]
    if costs := _format_costs(result.summary):
        lines.append(f"Took:    {costs}")
    lines += [f"Export:  {sanitize_line(export.uri)}" for export in result.exports]
    if result.before:
        lines.insert(0, "Already finished; nothing to do.")
    return "\n".join(lines)


def _format_costs(result: "Summary") -> str:
    """The time and the price of a run, and how far its estimate was off; empty if unknown."""
    if not result.device_seconds:
        return ""
    parts = [f"{format_duration(result.device_seconds)} of device time"]
    if result.cost is not None:
        parts.append(f"cost {format_money(result.cost)}")
    if result.estimate_error is not None:
        parts.append(format_estimate_error(result.estimate_error))
    return ", ".join(parts)


def format_preview(result: "Preview") -> str:
    """A sample, and where to look."""
    from imagekiln.steps.aggregate.verdict import describe_ok
    from imagekiln.steps.storage import open_store

    rest = "They are part of the run: run or submit the job, and it makes the others."
    if open_store(result.uri).exists(SUCCESS_KEY):
        rest = "The run has finished already."
    planned = pluralize(result.planned_images, "is planned", "are planned")
    ok = describe_ok(result.summary)
    return f"Preview: {ok}, as the job asks. {planned}.\nPage: {sanitize_line(result.page)}\n{rest}"


def format_retry(result: "RetryResult") -> str:
    """A run after a retry, and which failures a retry does not fix."""
    from imagekiln.steps.aggregate.verdict import describe_permanent_failures

    done = "Nothing left to retry"
    if result.images:
        name = f"Retry {result.retry}" if result.retry else "Missing parts"
        done = f"{name}: {pluralize(result.images, 'image')}"
    text = f"{done}. {format_summary(result.summary)}"
    permanent = describe_permanent_failures(result.summary)
    if not permanent:
        return text
    causes = [cause for cause in result.summary.failures if cause.is_permanent]
    reasons = [sanitize_line(f"  {cause.images:,}: {cause.error}") for cause in causes[:MAX_CAUSES]]
    again = sanitize_line(f"To retry them anyway: {format_command('retry', result.uri)} --all")
    return "\n".join([text, permanent.strip(), *reasons, again])


def format_runs(runs: "Sequence[RunOverview]") -> str:
    """Runs as a table, with the time of planning."""
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
    """The selected images of each run, and what to do."""
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
        shown = ", ".join(map(sanitize_line, result.unknown_ids[:MAX_SHOWN_IDS]))
        hidden = len(result.unknown_ids) - MAX_SHOWN_IDS
        more = f" and {hidden:,} more" if hidden > 0 else ""
        lines.append(f"No image here, and no row that one was made for, has the id {shown}{more}.")
    return "\n".join(lines)


def format_garbage(result: "GcResult") -> str:
    """Removed or removable runs, and the sum."""
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
