"""Commands of ours to type, for messages and the report: right for a shell, whatever a run is called."""

from collections.abc import Sequence
from shlex import quote

from imagekiln.steps.job import Job
from imagekiln.steps.visible import UNSAFE_IN_LINE


def quote_shell_word(text: str) -> str:
    """The text as one word of a shell that is not taken for an option; signs that nobody sees are spelt out."""
    text = f"./{text}" if text.startswith("-") else text
    if not UNSAFE_IN_LINE.search(text):
        return quote(text)
    spelt = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{UNSAFE_IN_LINE.sub(lambda found: _escape_bytes(found[0]), spelt)}'"


def format_command(verb: str, run: str, *options: str) -> str:
    """The command that does this with the run."""
    return " ".join(("imagekiln", verb, quote_shell_word(run), *options))


def format_aggregate_command(run: str, job: Job, failed_share: float, accepted: Sequence[str]) -> str:
    """The command that aggregates the run with this share of images that are not ok, and these gates, accepted."""
    share = () if failed_share == job.limits.failed_share else (f"--failed-share {failed_share}",)
    return format_command("aggregate", run, *share, *(f"--accept {gate}" for gate in accepted))


def _escape_bytes(sign: str) -> str:
    # A byte of a file's name that is no UTF-8 is a lone surrogate in ours.
    return "".join(f"\\x{byte:02x}" for byte in sign.encode(errors="surrogateescape"))
