"""What the command that tunes prints for people."""

from imagekiln.steps.tuning import TuningEntry, TuningResult
from imagekiln.steps.visible import sanitize_line

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
