"""How a run ended, in a line, and what to do next, as commands."""

import re
from dataclasses import dataclass
from typing import Literal

from imagekiln.steps import gates
from imagekiln.steps.acceptance import accepting
from imagekiln.steps.commands import aggregate, on_run
from imagekiln.steps.job import Job
from imagekiln.steps.summary import Summary
from imagekiln.steps.wording import count, of, percent

MOST_SHARDS = 3
SHARD = re.compile(r"(\d+)-\d+\D*$")  # in the name of a part

Kind = Literal["finished", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ended: `headline` and `advice` are sentences, `commands` what to type."""

    kind: Kind
    headline: str
    advice: str
    commands: tuple[str, ...]


def verdict(summary: Summary, job: Job, uri: str) -> Verdict:
    """The verdict on the run at `uri`."""
    if summary.missing:
        return _incomplete(summary, job, uri)
    if summary.too_many_failed:
        return _failed(summary, job, uri)
    if over := gates.exceeded(job.gates, summary):
        return _exceeded(summary, job, uri, over)
    return _finished(summary, uri)


def _finished(summary: Summary, run: str) -> Verdict:
    verify = on_run("verify", run)
    if not summary.images:
        return Verdict("finished", "Finished: there was no image to make.", _why_none(summary), ())
    if not summary.not_ok:
        advice = "Nothing is left to do. To read everything back and check it by hash:"
        return Verdict(
            "finished", f"Finished: all {of(summary.images, 'image is', 'images are')} ok.", advice, (verify,)
        )
    left = summary.not_ok > summary.statuses.get("filtered", 0)  # what was filtered, no retry makes again
    return Verdict(
        "finished",
        f"Finished: {count(summary.ok)} of {of(summary.images, 'image is', 'images are')} ok.",
        f"{percent(summary.not_ok / summary.images)} are not, within the {percent(summary.failed_share)} that are "
        f"accepted. To check what is there by hash{', or to make the others again' if left else ''}:",
        (verify, *([on_run("retry", run)] if left else [])),
    )


def _why_none(summary: Summary) -> str:
    if summary.existing_images:
        return f"Earlier runs have made {of(summary.existing_images, 'image')} that the prompts ask for."
    return "No row of the prompts was accepted."


def _incomplete(summary: Summary, job: Job, run: str) -> Verdict:
    shards = sorted({int(found[1]) for part in summary.missing_parts if (found := SHARD.search(part))})
    generate = [on_run("generate", run, f"--shard {shard}") for shard in shards[:MOST_SHARDS]]
    some = len(shards) > MOST_SHARDS or summary.missing_parts_count > len(summary.missing_parts)
    return Verdict(
        "incomplete",
        f"Incomplete: {count(summary.missing)} of {of(summary.images, 'image')} are missing.",
        "Run the job again, or its workflow: it makes what is missing and nothing else. "
        f"Or by hand, shard by shard{', of which these are the first' if some else ''}:",
        (*generate, aggregate(run, job, summary.failed_share, summary.accepted)),
    )


def _failed(summary: Summary, job: Job, run: str) -> Verdict:
    bad = f"{count(summary.not_ok)} of {of(summary.images, 'image is', 'images are')} not ok"
    return Verdict(
        "failed",
        f"Too many images failed: {bad}.",
        f"That is {percent(summary.not_ok / summary.images)}, and {percent(summary.failed_share)} are accepted. "
        "See the causes below; make these images again, or accept what is there:",
        (on_run("retry", run), accepting(run, job, summary)),
    )


def _exceeded(summary: Summary, job: Job, run: str, over: tuple[str, ...]) -> Verdict:
    found = {each.gate: each for each in gates.findings(job.gates, summary)}
    said = (f"{name} {percent(found[name].share)} where {percent(found[name].allowed or 0)} may be" for name in over)
    return Verdict(
        "failed",
        f"{of(len(over), 'gate')} found too many images.",
        f"{'; '.join(said)}. See the images below; mend the job, or accept what was found:",
        (accepting(run, job, summary),),
    )
