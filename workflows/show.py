"""What the commands print: a result as sentences for people, or as JSON for programs."""

from collections.abc import Callable
from typing import TypeVar

from pydantic import TypeAdapter

from imagekiln.steps import names
from imagekiln.steps.estimate import Estimate
from imagekiln.steps.plan import Plan
from imagekiln.steps.planning import PlanResult
from imagekiln.steps.run import RunResult
from imagekiln.steps.stats import ShardStats
from imagekiln.steps.storage import open_store
from imagekiln.steps.summary import Summary
from imagekiln.steps.verify import VerifyResult
from imagekiln.steps.visible import sanitize_line
from imagekiln.steps.wording import format_percent
from imagekiln.workflows.say import print_json, print_text

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
    shown = [f"{each.images} of {each.width} x {each.height}" for each in plan.batch_sizes[:MAX_SIZES]]
    more = [f"{len(plan.batch_sizes) - MAX_SIZES} more sizes"] if len(plan.batch_sizes) > MAX_SIZES else []
    return f"\nBatches: {', '.join(shown + more)}."


def format_round_plan(result: PlanResult) -> str:
    """The plan of a round, in a line."""
    return format_plan(result) if result.plan.shards else f"Nothing is left to retry: {sanitize_line(result.uri)}"


def format_shard(result: ShardStats | None) -> str:
    """A shard's work, in a line."""
    if result is None:
        return "Nothing is missing."
    busy = "" if result.busy_share is None else f", which computed {format_percent(result.busy_share)} of the time"
    made = f"{result.images:,} images, {result.images_per_second:.2f} a second on {result.device}{busy}."
    return f"Shard {result.shard}: {made}"


def format_summary(result: Summary) -> str:
    """A run's sums, in a line."""
    others = "".join(f", {count:,} {status}" for status, count in result.statuses.items() if status != "ok")
    marked = "".join(f", {count:,} marked {gate}" for gate, count in result.marks.items() if count)
    return f"{sanitize_line(result.run_id)}: {result.ok:,} of {result.images:,} images are ok{others}{marked}."


def format_run(result: RunResult) -> str:
    """A finished run, and where to look."""
    before = "Finished before; nothing to do.\n" if result.before else ""
    report = open_store(result.uri).uri_of(names.REPORT_KEY)
    return f"{before}{format_summary(result.summary)}\nDataset: {sanitize_line(result.uri)}\nReport:  {sanitize_line(report)}"


def format_verification(result: VerifyResult) -> str:
    """What was read back, in a line."""
    images = f"{result.ok:,} of {result.images:,} images"
    return f"{sanitize_line(result.run)}: {images} read back as planned, {result.bytes:,} bytes."


def format_estimate(result: Estimate) -> str:
    """What a job would make and take."""
    hours = "unknown; set shard.seconds_per_image" if result.gpu_hours is None else f"{result.gpu_hours:,.2f}"
    existing = f" and {result.existing_images:,} made by earlier runs" if result.existing_images else ""
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
