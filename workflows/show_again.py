"""What the commands that look at a run once more print for people."""

from collections.abc import Iterator

from imagekiln.steps.diff import Diff
from imagekiln.steps.gc import Garbage, GcResult
from imagekiln.steps.reproduce import Provenance, ReproduceResult
from imagekiln.steps.retry import RetryResult
from imagekiln.steps.visible import sanitize_line
from imagekiln.steps.wording import format_bytes
from imagekiln.workflows.show import format_summary


def format_retry(result: RetryResult) -> str:
    """A run after a round, in a line."""
    done = f"Round {result.round}: {result.images:,} images" if result.round else "Nothing is left to retry"
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
    pairs |= {name: (then.versions.get(name, "unknown"), version) for name, version in now.versions.items()}
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
        lines["in no pair"] = f"{result.indistinct:,}, since only their seed tells them from another"
    lines |= {f"{each.before} to {each.after}": f"{each.images:,}" for each in result.changes}
    return "\n".join(
        [f"{name + ':':<14}{value}" for name, value in lines.items()] + [f"Page: {sanitize_line(result.page)}"]
    )


def format_garbage(result: GcResult) -> str:
    """What may go or is gone, a line each, and the sum."""
    if not result.found:
        return "Nothing may go."
    done = "Removed" if result.removed else "May go; --remove removes it"
    return "\n".join([*map(_format_run_garbage, result.found), f"{done}: {format_bytes(result.bytes)}"])


def _format_run_garbage(each: Garbage) -> str:
    return (
        f"{sanitize_line(each.run)}: {each.reason}, {each.objects:,} objects, {format_bytes(each.bytes)}, "
        f"untouched for {each.days:.0f} days"
    )
