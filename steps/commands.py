"""Commands of ours to type, for messages and the report: right for a shell, whatever a run is called."""

from collections.abc import Sequence
from shlex import quote

from imagekiln.steps.job import Job
from imagekiln.steps.visible import IN_LINE


def word(text: str) -> str:
    """The text as one word of a shell that is not taken for an option; signs that nobody sees are spelt out."""
    text = f"./{text}" if text.startswith("-") else text
    if not IN_LINE.search(text):
        return quote(text)
    spelt = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{IN_LINE.sub(lambda found: _bytes(found[0]), spelt)}'"


def on_run(verb: str, run: str, *options: str) -> str:
    """The command that does this with the run."""
    return " ".join(("imagekiln", verb, word(run), *options))


def aggregate(run: str, job: Job, failed_share: float, accepted: Sequence[str]) -> str:
    """The command that aggregates the run with this share of images that are not ok, and these gates, accepted."""
    share = () if failed_share == job.limits.failed_share else (f"--failed-share {failed_share}",)
    return on_run("aggregate", run, *share, *(f"--accept {gate}" for gate in accepted))


def _bytes(sign: str) -> str:
    # A byte of a file's name that is no UTF-8 is a lone surrogate in ours.
    return "".join(f"\\x{byte:02x}" for byte in sign.encode(errors="surrogateescape"))
