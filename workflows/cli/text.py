"""What the commands print: a result as sentences for people, or as JSON for programs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

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
from imagekiln.steps.storage import open_store
from imagekiln.workflows.cli.terminal import print_json, print_text

if TYPE_CHECKING:  # the commands bring them; a pod that generates needs few
    from _typeshed import DataclassInstance

    from imagekiln.steps.aggregate.preview import Preview
    from imagekiln.steps.aggregate.summary import Summary
    from imagekiln.steps.local import RunResult
    from imagekiln.steps.maintain.forget import ForgetResult
    from imagekiln.steps.maintain.gc import Garbage, GcResult
    from imagekiln.steps.maintain.retry import RetryResult
    from imagekiln.steps.maintain.run_list import RunOverview
    from imagekiln.steps.maintain.verify import VerifyResult
    from imagekiln.steps.runs.stats import ShardStats

T = TypeVar("T")
MAX_CAUSES = 5
MAX_SHOWN_IDS = 5


def format_fields(result: object) -> str:
    """A result as a table, with a line for each field that has a value."""
    lines = {name: text for name, text in _field_texts(result) if text}
    return format_table(lines, width=max(map(len, lines)))


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


def print_result(
    result: T, output_format: str, format_text: Callable[[T], str] = format_fields
) -> None:
    """Print a result as text or as JSON."""
    if output_format == "json":
        # Not by pydantic at once, which refuses a name that is not UTF-8, or half of a pair.
        values = TypeAdapter(type(result)).dump_python(result, mode="json")
        plain = to_jsonable_python(values, inf_nan_mode="null")
        print_json(json.dumps(plain, ensure_ascii=False, indent=2))
    else:
        print_text(format_text(result))


def format_images(statuses: Mapping[str, int]) -> str:
    """The stored images of these, and how many others there are, by status."""
    images = pluralize(statuses.get("ok", 0), "image")
    others = _list_others(statuses)
    return f"{images} ({', '.join(others)})" if others else images


def _list_others(statuses: Mapping[str, int]) -> list[str]:
    return [f"{count:,} {status}" for status, count in statuses.items() if status != "ok"]


def format_verified(result: "VerifyResult") -> str:
    """What was read back, in a line."""
    stored = pluralize(result.ok, "stored image")
    line = f"{sanitize_line(result.run)}: {'all ' if result.ok > 1 else ''}{stored} verified"
    others = ", ".join(_list_others(result.statuses))
    return f"{line}, {format_bytes(result.bytes)}{'; ' if others else ''}{others}."


def format_shard(result: "ShardStats | None") -> str:
    """What was generated of a shard, in a line."""
    if result is None:
        return "Nothing is missing."
    speed = f"{result.images_per_second:.2f} images/s on {result.device}"
    images = pluralize(result.images, "image")
    return f"Shard {result.shard}: {images}, {speed}{_format_busy_share(result)}."


def _format_busy_share(result: "ShardStats") -> str:
    if result.busy_share is None:
        return ""
    return f", busy {format_percent(result.busy_share)} of the time"


def format_summary(result: "Summary") -> str:
    """A run's sums, in a line."""
    from imagekiln.steps.aggregate.verdict import describe_rejected

    ok = f"{result.ok:,} of {result.ok + result.not_ok:,} images are ok"
    if not result.images:
        ok = _explain_no_images(result)
    marks = [f"{count:,} marked {gate}" for gate, count in result.marks.items() if count]
    rejected = describe_rejected(result)
    counts = ", ".join(filter(None, [ok, *_list_others(result.statuses), *marks, rejected]))
    return f"{sanitize_line(result.run_id)}: {counts}."


def _explain_no_images(result: "Summary") -> str:
    if not result.existing_images:
        return "no images to generate"
    images = pluralize(result.existing_images, "image is", "images are")
    return f"nothing new to generate, {images} in earlier runs already"


def format_costs(result: "Summary") -> str:
    """What a run took and cost, and how far its estimate was off, in a line; empty if unknown."""
    if not result.device_seconds:
        return ""
    parts = [f"{format_duration(result.device_seconds)} of device time"]
    if result.cost is not None:
        parts.append(f"cost {format_money(result.cost)}")
    if result.estimate_error is not None:
        parts.append(format_estimate_error(result.estimate_error))
    return ", ".join(parts)


def format_run(result: "RunResult") -> str:
    """A finished run, and where to look."""
    report = open_store(result.uri).uri_of(REPORT_KEY)
    lines = [
        format_summary(result.summary),
        f"Dataset: {sanitize_line(result.uri)}",
        f"Report:  {sanitize_line(report)}",
    ]
    if costs := format_costs(result.summary):
        lines.append(f"Took:    {costs}")
    lines += [f"Export:  {sanitize_line(export.uri)}" for export in result.exports]
    if result.before:
        lines.insert(0, "Already finished; nothing to do.")
    return "\n".join(lines)


def format_preview(result: "Preview") -> str:
    """What was made of a sample, and where to look."""
    from imagekiln.steps.aggregate.verdict import describe_ok

    rest = "They are part of the run: run or submit the job, and it makes the others."
    if open_store(result.uri).exists(SUCCESS_KEY):
        rest = "The run has finished already."
    ok = describe_ok(result.summary)
    planned = pluralize(result.planned_images, "is planned", "are planned")
    return f"Preview: {ok}, as the job asks. {planned}.\nPage: {sanitize_line(result.page)}\n{rest}"


def format_retry(result: "RetryResult") -> str:
    """A run after a retry, in a line."""
    done = "Nothing left to retry"
    if result.images:
        name = f"Retry {result.retry}" if result.retry else "Missing parts"
        done = f"{name}: {pluralize(result.images, 'image')}"
    return f"{done}. {format_summary(result.summary)}{_format_permanent(result)}"


def _format_permanent(result: "RetryResult") -> str:
    """What another try cannot mend, why, and how to try nevertheless."""
    from imagekiln.steps.aggregate.verdict import describe_permanent_failures

    permanent = describe_permanent_failures(result.summary)
    if not permanent:
        return ""
    causes = [cause for cause in result.summary.failures if cause.is_permanent]
    reasons = [sanitize_line(f"  {cause.images:,}: {cause.error}") for cause in causes[:MAX_CAUSES]]
    again = sanitize_line(f"To try them nevertheless: {format_command('retry', result.uri)} --all")
    return "\n".join(["", permanent.strip(), *reasons, again])


def format_runs(runs: "list[RunOverview]") -> str:
    """Runs, a line each, with the time of planning."""
    if not runs:
        return "No runs."
    width = max(len(run.run_id) for run in runs)
    lines = [
        f"{run.run_id:<{width}}  {format_time(run.created_at.timestamp())}  "
        f"{_format_run_overview(run)}"
        for run in runs
    ]
    return "\n".join(lines)


def _format_run_overview(run: "RunOverview") -> str:
    if run.ok is None:
        images = pluralize(run.images, "image")
        done = (
            f"{images} planned" if run.committed is None else f"{run.committed:,} of {images} made"
        )
        return ", ".join([run.state, done, *_cost_parts(run.device_hours, run.cost)])
    state: str = run.state
    if run.exceeded_gates:
        noun = "gate" if len(run.exceeded_gates) == 1 else "gates"
        state += f" ({noun} {', '.join(run.exceeded_gates)} found too many images)"
    parts = [state, format_images(run.statuses)]
    if run.elapsed_seconds:
        parts.append(format_duration(run.elapsed_seconds))
    parts += _cost_parts(run.device_hours, run.cost)
    return ", ".join(parts)


def _cost_parts(device_hours: float | None, cost: float | None) -> list[str]:
    """What a run took and cost, as far as it is known."""
    parts = []
    if device_hours:
        parts.append(format_device_hours(device_hours))
    if cost is not None:
        parts.append(f"cost {format_money(cost)}")
    return parts


def format_forgotten(result: "ForgetResult") -> str:
    """What was selected in each run and each export, a line each, and what to do."""
    verb = "forgotten" if result.removed else "selected"
    lines = [
        f"{sanitize_line(place.uri)}: {pluralize(place.images, noun)} {verb}"
        + (f", {place.images - place.new:,} of them before" if place.new < place.images else "")
        for noun, places in (("planned image", result.runs), ("image", result.exports))
        for place in places
        if place.images
    ]
    if not lines:
        lines.append(f"No image of {pluralize(len(result.runs), 'run')} matches.")
    elif not result.removed:
        lines.append("To remove them for good, add --remove.")
    else:
        lines.append("Exports not named keep them, and jobs without skip_existing make them again.")
    if result.unknown_ids:
        lines.append(_format_unknown_ids(result.unknown_ids))
    return "\n".join(lines)


def _format_unknown_ids(ids: Sequence[str]) -> str:
    shown = ", ".join(map(sanitize_line, ids[:MAX_SHOWN_IDS]))
    hidden = len(ids) - MAX_SHOWN_IDS
    more = f" and {hidden:,} more" if hidden > 0 else ""
    return f"No image here, and no row that one was made for, has the id {shown}{more}."


def format_garbage(result: "GcResult") -> str:
    """What can be or was removed, a line each, and the sum."""
    recent = _format_recent_runs(result.recent_runs)
    if not result.found:
        return f"Nothing to remove.{recent}"
    verb = "Removed" if result.removed else "To remove with --remove"
    lines = [_format_run_garbage(garbage) for garbage in result.found]
    return "\n".join([*lines, f"{verb}: {format_bytes(result.bytes)}{recent}"])


def _format_recent_runs(runs: int) -> str:
    if not runs:
        return ""
    stay = pluralize(runs, "unfinished run is", "unfinished runs are")
    return f"\n{stay} younger than --older-than (7 days by default): 0 lists all."


def _format_run_garbage(garbage: "Garbage") -> str:
    objects = f"{pluralize(garbage.objects, 'object')}, {format_bytes(garbage.bytes)}"
    age = f"untouched for {pluralize(round(garbage.days), 'day')}"
    return f"{sanitize_line(garbage.run)}: {garbage.reason}, {objects}, {age}"


def format_table(lines: Mapping[str, str], width: int) -> str:
    """A name and a value a line, the values one under the other."""
    return "\n".join(f"{name + ':':<{width + 2}}{value}" for name, value in lines.items())
