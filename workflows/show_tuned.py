"""What the command that tunes prints for people."""

from imagekiln.steps.tuning import Entry, Tuned
from imagekiln.steps.visible import in_line

WHY = {
    "saturated": "larger batches gain nothing",
    "memory": "larger batches do not fit in memory",
    "largest": "no larger batch is tried",
    "time": "the time was over",
}


def tuned(result: Tuned) -> str:
    """Each shape's batch with what was measured, and where it is kept."""
    found = "" if result.measured else "Found, and not measured again: --again does.\n"
    kept = f"Kept in: {in_line(result.file)}\nName it in the job, as batch.tuning."
    return found + "\n".join([*map(_entry, result.entries), kept])


def _entry(entry: Entry) -> str:
    images = f"{entry.batch} image{'' if entry.batch == 1 else 's'} at once"
    head = f"{entry.width} x {entry.height} on {in_line(entry.gpu)}: {images}"
    lines = [f"{head}, {entry.seconds_per_image:.3g} s each ({WHY[entry.stopped]})."]
    for rate in entry.measured:
        memory = "" if rate.peak_gib is None else f"{rate.peak_gib:9.1f} GiB"
        lines.append(f"{rate.batch:6} at once {rate.images_per_second:10.3g} images/s{memory}")
    return "\n".join(lines)
