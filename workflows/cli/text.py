"""What the commands print: a result as sentences for people, or as JSON for programs."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter

from imagekiln.steps.job.user_checks import find_untried_checks
from imagekiln.steps.runs.keys import REJECTED_KEY, REPORT_KEY
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_duration,
    format_number,
    format_percent,
    format_time,
    pluralize,
)
from imagekiln.steps.runtime.sanitize import format_command, sanitize_line
from imagekiln.steps.storage import open_store
from imagekiln.workflows.cli.terminal import print_json, print_note, print_text

if TYPE_CHECKING:  # the commands bring them; a pod that generates needs few
    from imagekiln.steps.aggregate.summary import Summary
    from imagekiln.steps.job.tuning_file import TuningEntry, TuningResult
    from imagekiln.steps.local import RunResult
    from imagekiln.steps.maintain.diff import Diff
    from imagekiln.steps.maintain.gc import Garbage, GcResult
    from imagekiln.steps.maintain.reproduce import Provenance, ReproduceResult
    from imagekiln.steps.maintain.retry import RetryResult
    from imagekiln.steps.maintain.run_list import RunOverview
    from imagekiln.steps.maintain.verify import VerifyResult
    from imagekiln.steps.plan.estimate import Estimate
    from imagekiln.steps.plan.step import PlanResult
    from imagekiln.steps.runs.plan import Plan
    from imagekiln.steps.runs.stats import ShardStats

T = TypeVar("T")
MAX_SIZES = 5
MAX_UNUSED_COLUMNS = 8
BYTES_PER_GIGABYTE = 1e9


def print_result(result: T, output: str, format_text: Callable[[T], str]) -> None:
    """Print a result as text or as JSON."""
    if output == "json":
        print_json(TypeAdapter(type(result)).dump_json(result, indent=2).decode())
    else:
        print_text(format_text(result))


def print_plan(result: "PlanResult", gpus: int = 1) -> None:
    """Print a plan that is about to be carried out, next to the command's result."""
    print_note(format_plan(result, gpus))
    print_untried_checks(result)


def print_untried_checks(result: "PlanResult") -> None:
    """Print a note for each check of the user's that does not import where it was planned."""
    for sentence in find_untried_checks(result.plan.job.gates.checks):
        print_note(sentence)


# Planning.


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
    uri = sanitize_line(result.uri)
    notes = [
        _format_rejections(result),
        _format_revisions(result),
        _format_columns(result),
        _format_batches(plan),
    ]
    time = _format_time(result, gpus, cluster_gpus)
    return f"{verb} {images}{extra}: {uri}{''.join(notes)}{time}"


def _format_rejections(result: "PlanResult") -> str:
    """Where rejected rows are listed, and why most of them were rejected."""
    if not result.plan.counts.rejected_rows:
        return ""
    sentence = f"Rejected rows are listed in {open_store(result.uri).uri_of(REJECTED_KEY)}."
    if cause := result.commonest_rejection:
        rows = pluralize(cause.rows, "row")
        sentence += f" The most frequent reason: {cause.column} {cause.reason} ({rows})."
    return f"\n{sanitize_line(sentence)}"


def _format_time(result: "PlanResult", gpus: int, cluster_gpus: int | None) -> str:
    """How long it takes, on a line of its own, if that is known."""
    if result.time is None:
        return ""
    if cluster_gpus is None:
        sentence = result.time.describe(gpus)
    else:
        sentence = result.time.describe_both(cluster_gpus)
    return f"\n{sanitize_line(sentence)}"


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


def _format_columns(result: "PlanResult | Estimate") -> str:
    """The columns that were taken as prompts for their names, and those not used, a line each."""
    lines = []
    if result.prompt_columns:
        names = ", ".join(map(repr, result.prompt_columns))
        lines.append(f"Prompts are read from column {names}; columns.prompt sets another.")
    if result.unused_columns:
        names = ", ".join(result.unused_columns[:MAX_UNUSED_COLUMNS])
        omitted = len(result.unused_columns) - MAX_UNUSED_COLUMNS
        more = f" and {omitted} more" if omitted > 0 else ""
        lines.append(f"Not used: {names}{more} (`columns` and `carry` take them).")
    return "".join(f"\n{sanitize_line(line)}" for line in lines)


def format_round_plan(result: "PlanResult") -> str:
    """The plan of a retry round, in a line."""
    if not result.plan.shards:
        return f"Nothing left to retry: {sanitize_line(result.uri)}"
    return format_plan(result)


def _format_batches(plan: "Plan") -> str:
    """The batch sizes, where the job asks for tuned ones."""
    batch = plan.job.batch
    is_tuned = batch.tuning is not None or batch.gpu is not None
    if batch.images is not None or not is_tuned:
        return ""
    if not plan.batch_sizes:
        return (
            f"\nBatches of {plan.max_batch_size} images: no tuning entry fits this model, dtype, "
            "speed and GPU. `imagekiln tune` measures one."
        )
    sizes = [f"{size.images} of {size.width} x {size.height}" for size in plan.batch_sizes]
    omitted = len(sizes) - MAX_SIZES
    if omitted > 0:
        sizes[MAX_SIZES:] = [f"{omitted} more sizes"]
    return f"\nBatches: {', '.join(sizes)}."


def format_estimate(result: "Estimate") -> str:
    """What a job would generate, and what that takes."""
    omitted = pluralize(result.duplicate_images, "duplicate")
    if result.existing_images:
        omitted += f" and {result.existing_images:,} already in earlier runs"

    lines = {
        "rows": f"{result.rows:,} ({result.rejected_rows:,} rejected)",
        "images": f"{result.images:,} ({omitted} omitted)",
        "truncated": pluralize(result.truncated_prompts, "prompt"),
        "shards": f"{result.shards:,} ({pluralize(result.parts, 'part')} in all)",
        "size": f"about {format_bytes(result.gigabytes * BYTES_PER_GIGABYTE)}",
    }
    table = _format_table(lines | _time_lines(result), width=11)
    return f"{table}{_format_columns(result)}"


def _time_lines(result: "Estimate") -> dict[str, str]:
    """How long it takes and what that costs, or why that is not known."""
    from imagekiln.steps.plan.run_time import HOW_TO_MEASURE, format_both

    if result.gpu_hours is None or result.hours is None or result.gpus is None:
        lines = {"GPU-hours": f"unknown; {HOW_TO_MEASURE}"}
        if result.price_per_hour is not None:
            lines["cost"] = "unknown without the GPU-hours"
        return lines

    source = sanitize_line(result.time_source or "")
    lines = {
        "GPU-hours": f"{result.gpu_hours:,.2f} ({source})",
        "time": f"about {format_both(result.gpu_hours, result.hours, result.gpus)}",
    }
    if not result.is_measured:
        lines["other GPUs"] = _format_other_gpus(result.gpu_hours)
    if result.cost is not None:
        lines["cost"] = f"{result.cost:,.2f}"
    return lines


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


# Generating and aggregating.


def format_shard(result: "ShardStats | None") -> str:
    """What was generated of a shard, in a line."""
    if result is None:
        return "Nothing is missing."
    busy = ""
    if result.busy_share is not None:
        busy = f", busy {format_percent(result.busy_share)} of the time"
    speed = f"{result.images_per_second:.2f} images/s on {result.device}"
    return f"Shard {result.shard}: {pluralize(result.images, 'image')}, {speed}{busy}."


def format_summary(result: "Summary") -> str:
    """A run's sums, in a line."""
    if not result.images:
        return f"{sanitize_line(result.run_id)}: {_explain_no_images(result)}."
    ok = f"{result.ok:,} of {result.images:,} images are ok"
    other_statuses = [
        f"{count:,} {status}" for status, count in result.statuses.items() if status != "ok"
    ]
    marks = [f"{count:,} marked {gate}" for gate, count in result.marks.items() if count]
    return f"{sanitize_line(result.run_id)}: {', '.join([ok, *other_statuses, *marks])}."


def _explain_no_images(result: "Summary") -> str:
    if not result.existing_images:
        return "no images to generate"
    images = pluralize(result.existing_images, "image is", "images are")
    return f"nothing new to generate, {images} in earlier runs already"


def format_run(result: "RunResult") -> str:
    """A finished run, and where to look."""
    report = open_store(result.uri).uri_of(REPORT_KEY)
    lines = [
        format_summary(result.summary),
        f"Dataset: {sanitize_line(result.uri)}",
        f"Report:  {sanitize_line(report)}",
    ]
    if result.before:
        lines.insert(0, "Already finished; nothing to do.")
    return "\n".join(lines)


# After a run.


def format_verification(result: "VerifyResult") -> str:
    """What was read back, in a line."""
    images = f"{result.ok:,} of {result.images:,} images"
    return f"{sanitize_line(result.run)}: {images} verified, {result.bytes:,} bytes."


def format_retry(result: "RetryResult") -> str:
    """A run after a retry round, in a line."""
    if result.round:
        done = f"Round {result.round}: {pluralize(result.images, 'image')}"
    else:
        done = "Nothing left to retry"
    return f"{done}. {format_summary(result.summary)}{_format_permanent(result)}"


def _format_permanent(result: "RetryResult") -> str:
    """What another try cannot mend, why, and how to try nevertheless."""
    from imagekiln.steps.aggregate.verdict import describe_permanent_failures

    permanent = describe_permanent_failures(result.summary)
    if not permanent:
        return ""
    causes = [cause for cause in result.summary.failures if cause.is_permanent]
    reasons = [sanitize_line(f"  {cause.images:,}: {cause.error}") for cause in causes[:MAX_SIZES]]
    again = sanitize_line(f"To try them nevertheless: {format_command('retry', result.uri)} --all")
    return "\n".join(["", permanent.strip(), *reasons, again])


def format_reproduction(result: "ReproduceResult") -> str:
    """An image that was generated again: how it compares, and what may explain a difference."""
    lines = [_format_equality(result)]
    if not result.has_same_pixels:
        lines += _format_differences(result.then, result.now)
    if result.file is not None:
        lines.append(f"Written: {sanitize_line(result.file)}")
    return "\n".join(lines)


def _format_equality(result: "ReproduceResult") -> str:
    image = result.image_id
    if result.equal == "bytes":
        return f"{image}: the bytes are equal."
    if result.equal == "pixels":
        return f"{image}: the pixels are equal, the bytes are not."
    if distance := result.likeness:
        psnr = "" if distance.psnr is None else f", PSNR {distance.psnr:.1f} dB"
        mean = f"{distance.mean:.2f} of 255 on average"
        return f"{image}: pixels differ by {mean}, at most {distance.largest}{psnr}."
    error = f" ({sanitize_line(result.error)})" if result.error else ""
    return f"{image}: was {result.status_then}, is now {result.status_now}{error}."


def _format_differences(then: "Provenance | None", now: "Provenance") -> Iterator[str]:
    if then is None:
        yield "How the run made it was not recorded."
        return
    before = _provenance_values(then)
    for name, value in _provenance_values(now).items():
        earlier = before.get(name, "unknown")
        if earlier != value:
            yield sanitize_line(f"{name}: {earlier} then, {value} now")


def _provenance_values(provenance: "Provenance") -> dict[str, str]:
    values = {"device": provenance.device, "batch": str(provenance.batch)}
    return values | provenance.versions


def format_diff(result: "Diff") -> str:
    """Two runs, in a few lines."""
    lines = {
        "in both": f"{result.both:,} images",
        "only in one": f"{result.only_first:,} in the first, {result.only_second:,} in the second",
        "equal pixels": f"{result.pixels_equal:,}",
    }
    if result.rms is not None:
        lines["pixel RMS"] = f"{result.rms:.1f} of 255, over {result.sampled} pairs"
    if result.indistinct:
        lines["unpaired"] = f"{result.indistinct:,}, which differ in their seed alone"
    for change in result.changes:
        lines[f"{change.before} to {change.after}"] = f"{change.images:,}"
    return f"{_format_table(lines, width=12)}\nPage: {sanitize_line(result.page)}"


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
        return f"{run.state}, {pluralize(run.images, 'image')} planned"
    state: str = run.state
    if run.exceeded_gates:
        noun = "gate" if len(run.exceeded_gates) == 1 else "gates"
        state += f" ({noun} {', '.join(run.exceeded_gates)} found too many images)"
    parts = [state, f"{run.ok:,} of {pluralize(run.images, 'image')} ok"]
    if run.elapsed_seconds:
        parts.append(format_duration(run.elapsed_seconds))
    if run.device_hours:
        parts.append(f"{format_number(run.device_hours)} GPU-hours")
    if run.cost is not None:
        parts.append(f"cost {format_number(run.cost)}")
    return ", ".join(parts)


def format_garbage(result: "GcResult") -> str:
    """What can be or was removed, a line each, and the sum."""
    if not result.found:
        return "Nothing to remove."
    verb = "Removed" if result.removed else "To remove with --remove"
    lines = [_format_run_garbage(garbage) for garbage in result.found]
    return "\n".join([*lines, f"{verb}: {format_bytes(result.bytes)}"])


def _format_run_garbage(garbage: "Garbage") -> str:
    objects = f"{pluralize(garbage.objects, 'object')}, {format_bytes(garbage.bytes)}"
    age = f"untouched for {pluralize(round(garbage.days), 'day')}"
    return f"{sanitize_line(garbage.run)}: {garbage.reason}, {objects}, {age}"


def _format_table(lines: Mapping[str, str], width: int) -> str:
    """A name and a value a line, the values one under the other."""
    return "\n".join(f"{name + ':':<{width + 2}}{value}" for name, value in lines.items())
