"""What the commands print: a result as sentences for people, or as JSON for programs."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from pydantic import TypeAdapter

from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.job.tuning_file import TuningEntry, TuningResult
from imagekiln.steps.local import RunResult
from imagekiln.steps.maintain.diff import Diff
from imagekiln.steps.maintain.gc import Garbage, GcResult
from imagekiln.steps.maintain.reproduce import Provenance, ReproduceResult
from imagekiln.steps.maintain.retry import RetryResult
from imagekiln.steps.maintain.verify import VerifyResult
from imagekiln.steps.plan.estimate import Estimate
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import REPORT_KEY
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.figures import format_bytes, format_percent
from imagekiln.steps.runtime.sanitize import sanitize_line
from imagekiln.steps.storage import open_store
from imagekiln.workflows.cli.terminal import print_json, print_text

T = TypeVar("T")
MAX_SIZES = 5


def print_result(result: T, output: str, text: Callable[[T], str]) -> None:
    """Print a result, as `text` has it or as JSON."""
    if output == "json":
        print_json(TypeAdapter(type(result)).dump_json(result, indent=2).decode())
    else:
        print_text(text(result))


def format_plan(result: PlanResult) -> str:
    """A plan, in a line or two."""
    plan, counts = result.plan, result.plan.counts
    found = "Found the plan of" if result.adopted else "Planned"
    rest = [
        (counts.rejected_rows, "rows refused"),
        (counts.duplicate_images, "duplicates, made once"),
        (counts.existing_images, "made by earlier runs"),
        (counts.truncated_prompts, "prompts that the model cuts"),
    ]
    extra = "".join(f", {count:,} {what}" for count, what in rest if count)
    shards = f"{len(plan.shards):,} shard{'' if len(plan.shards) == 1 else 's'}"
    return f"{found} {counts.images:,} images in {shards}{extra}: {sanitize_line(result.uri)}{_format_batches(plan)}"


def _format_batches(plan: Plan) -> str:
    """How large batches are, where the job asks for what was tuned."""
    asked = plan.job.batch
    if asked.images is not None or (asked.tuning is None and asked.gpu is None):
        return ""
    if not plan.batch_sizes:
        unknown = "nothing is known of this model, dtype and speed on this GPU. `imagekiln tune` measures it."
        return f"\nBatches of {plan.max_batch_size} images: {unknown}"
    shown = [
        f"{each.images} of {each.width} x {each.height}" for each in plan.batch_sizes[:MAX_SIZES]
    ]
    more = (
        [f"{len(plan.batch_sizes) - MAX_SIZES} more sizes"]
        if len(plan.batch_sizes) > MAX_SIZES
        else []
    )
    return f"\nBatches: {', '.join(shown + more)}."


def format_round_plan(result: PlanResult) -> str:
    """The plan of a round, in a line."""
    return (
        format_plan(result)
        if result.plan.shards
        else f"Nothing is left to retry: {sanitize_line(result.uri)}"
    )


def format_shard(result: ShardStats | None) -> str:
    """A shard's work, in a line."""
    if result is None:
        return "Nothing is missing."
    busy = (
        ""
        if result.busy_share is None
        else f", which computed {format_percent(result.busy_share)} of the time"
    )
    made = f"{result.images:,} images, {result.images_per_second:.2f} a second on {result.device}{busy}."
    return f"Shard {result.shard}: {made}"


def format_summary(result: Summary) -> str:
    """A run's sums, in a line."""
    others = "".join(
        f", {count:,} {status}" for status, count in result.statuses.items() if status != "ok"
    )
    marked = "".join(f", {count:,} marked {gate}" for gate, count in result.marks.items() if count)
    return f"{sanitize_line(result.run_id)}: {result.ok:,} of {result.images:,} images are ok{others}{marked}."


def format_run(result: RunResult) -> str:
    """A finished run, and where to look."""
    before = "Finished before; nothing to do.\n" if result.before else ""
    report = open_store(result.uri).uri_of(REPORT_KEY)
    return f"{before}{format_summary(result.summary)}\nDataset: {sanitize_line(result.uri)}\nReport:  {sanitize_line(report)}"


def format_verification(result: VerifyResult) -> str:
    """What was read back, in a line."""
    images = f"{result.ok:,} of {result.images:,} images"
    return f"{sanitize_line(result.run)}: {images} read back as planned, {result.bytes:,} bytes."


def format_estimate(result: Estimate) -> str:
    """What a job would make and take."""
    hours = (
        "unknown; set shard.seconds_per_image"
        if result.gpu_hours is None
        else f"{result.gpu_hours:,.2f}"
    )
    existing = (
        f" and {result.existing_images:,} made by earlier runs" if result.existing_images else ""
    )
    left_out = f"{result.duplicate_images:,} duplicates{existing}"
    lines = {
        "rows": f"{result.rows:,} ({result.rejected_rows:,} refused)",
        "images": f"{result.images:,} ({left_out} left out)",
        "prompts cut": f"{result.truncated_prompts:,}",
        "shards": f"{result.shards:,} ({result.parts:,} parts in all)",
        "gigabytes": f"{result.gigabytes:,.2f} or so, as PNG",
        "GPU-hours": hours,
    } | ({} if result.cost is None else {"cost": f"{result.cost:,.2f}"})
    return "\n".join(f"{name + ':':<13}{value}" for name, value in lines.items())


def format_retry(result: RetryResult) -> str:
    """A run after a round, in a line."""
    done = (
        f"Round {result.round}: {result.images:,} images"
        if result.round
        else "Nothing is left to retry"
    )
    return f"{done}. {format_summary(result.summary)}"


def format_reproduction(result: ReproduceResult) -> str:
    """An image drawn again: how it compares, and where it does not, what may be why."""
    lines = [_format_equality(result)]
    if not result.has_same_pixels:
        lines += _format_differences(result.then, result.now)
    if result.file is not None:
        lines.append(f"Written: {sanitize_line(result.file)}")
    return "\n".join(lines)


def _format_equality(result: ReproduceResult) -> str:
    if result.equal == "bytes":
        return f"{result.image_id}: the bytes are equal."
    if result.equal == "pixels":
        return f"{result.image_id}: the pixels are equal, the bytes are not."
    if apart := result.likeness:
        alike = "" if apart.psnr is None else f", PSNR {apart.psnr:.1f} dB"
        return f"{result.image_id}: pixels differ by {apart.mean:.2f} of 255, at most {apart.largest}{alike}."
    error = f" ({sanitize_line(result.error)})" if result.error else ""
    return f"{result.image_id}: was {result.status_then}, and is {result.status_now}{error} now."


def _format_differences(then: Provenance | None, now: Provenance) -> Iterator[str]:
    if then is None:
        yield "Nobody noted what it was made with."
        return
    pairs = {"device": (then.device, now.device), "batch": (str(then.batch), str(now.batch))}
    pairs |= {
        name: (then.versions.get(name, "unknown"), version)
        for name, version in now.versions.items()
    }
    for name, (before, after) in pairs.items():
        if before != after:
            yield sanitize_line(f"{name}: {before} then, {after} now")


def format_diff(result: Diff) -> str:
    """Two runs, in a few lines."""
    lines = {
        "in both": f"{result.both:,} images",
        "only in one": f"{result.only_first:,} in the first, {result.only_second:,} in the second",
        "pixels equal": f"{result.pixels_equal:,}",
    }
    if result.rms is not None:
        lines["pixels apart"] = f"{result.rms:.1f} of 255, over {result.sampled} pairs"
    if result.indistinct:
        lines["in no pair"] = (
            f"{result.indistinct:,}, since only their seed tells them from another"
        )
    lines |= {f"{each.before} to {each.after}": f"{each.images:,}" for each in result.changes}
    return "\n".join(
        [f"{name + ':':<14}{value}" for name, value in lines.items()]
        + [f"Page: {sanitize_line(result.page)}"]
    )


def format_garbage(result: GcResult) -> str:
    """What may go or is gone, a line each, and the sum."""
    if not result.found:
        return "Nothing may go."
    done = "Removed" if result.removed else "May go; --remove removes it"
    return "\n".join(
        [*map(_format_run_garbage, result.found), f"{done}: {format_bytes(result.bytes)}"]
    )


def _format_run_garbage(each: Garbage) -> str:
    return (
        f"{sanitize_line(each.run)}: {each.reason}, {each.objects:,} objects, {format_bytes(each.bytes)}, "
        f"untouched for {each.days:.0f} days"
    )


STOP_REASONS = {
    "saturated": "larger batches gain nothing",
    "memory": "larger batches do not fit in memory",
    "largest": "no larger batch is tried",
    "time": "the time was over",
}


def format_tuning(result: TuningResult) -> str:
    """Each shape's batch with what was measured, and where it is kept."""
    found = "" if result.measured else "Found, and not measured again: --again does.\n"
    kept = f"Kept in: {sanitize_line(result.file)}\nName it in the job, as batch.tuning."
    return found + "\n".join([*map(_format_entry, result.entries), kept])


def _format_entry(entry: TuningEntry) -> str:
    images = f"{entry.batch} image{'' if entry.batch == 1 else 's'} at once"
    head = f"{entry.width} x {entry.height} on {sanitize_line(entry.gpu)}: {images}"
    lines = [f"{head}, {entry.seconds_per_image:.3g} s each ({STOP_REASONS[entry.stopped]})."]
    for rate in entry.measured:
        memory = "" if rate.peak_gib is None else f"{rate.peak_gib:9.1f} GiB"
        lines.append(f"{rate.batch:6} at once {rate.images_per_second:10.3g} images/s{memory}")
    return "\n".join(lines)
