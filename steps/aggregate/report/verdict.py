"""How a run ended, in a line, and what to do next, as commands."""

import re
from dataclasses import dataclass
from typing import Literal

from imagekiln.steps.aggregate.acceptance import (
    accept_command,
    exceeded_gates,
    format_aggregate_command,
    gate_results,
)
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.job.job import Job
from imagekiln.steps.runtime.figures import format_count, format_percent, pluralize
from imagekiln.steps.runtime.sanitize import format_command

MAX_SHARD_COMMANDS = 3
PART_SHARD = re.compile(r"(\d+)-\d+\D*$")  # in the name of a part
VerdictKind = Literal["finished", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """How a run ended: `headline` and `advice` are sentences, `commands` what to type."""

    kind: VerdictKind
    headline: str
    advice: str
    commands: tuple[str, ...]


def judge_run(summary: Summary, job: Job, uri: str) -> RunVerdict:
    """The verdict on the run at `uri`."""
    if summary.missing:
        return _incomplete_verdict(summary, job, uri)
    if summary.too_many_failed:
        return _failed_verdict(summary, job, uri)
    if over := exceeded_gates(job.gates, summary):
        return _exceeded_verdict(summary, job, uri, over)
    return _finished_verdict(summary, uri)


def _finished_verdict(summary: Summary, run: str) -> RunVerdict:
    verify = format_command("verify", run)
    if not summary.images:
        return RunVerdict(
            "finished", "Finished: there was no image to make.", _explain_no_images(summary), ()
        )
    if not summary.not_ok:
        advice = "Nothing is left to do. To read everything back and check it by hash:"
        return RunVerdict(
            "finished",
            f"Finished: all {pluralize(summary.images, 'image is', 'images are')} ok.",
            advice,
            (verify,),
        )
    left = summary.not_ok > summary.statuses.get(
        "filtered", 0
    )  # what was filtered, no retry makes again
    return RunVerdict(
        "finished",
        f"Finished: {format_count(summary.ok)} of {pluralize(summary.images, 'image is', 'images are')} ok.",
        f"{format_percent(summary.not_ok / summary.images)} are not, within the {format_percent(summary.failed_share)} that are "
        f"accepted. To check what is there by hash{', or to make the others again' if left else ''}:",
        (verify, *([format_command("retry", run)] if left else [])),
    )


def _explain_no_images(summary: Summary) -> str:
    if summary.existing_images:
        return f"Earlier runs have made {pluralize(summary.existing_images, 'image')} that the prompts ask for."
    return "No row of the prompts was accepted."


def _incomplete_verdict(summary: Summary, job: Job, run: str) -> RunVerdict:
    shards = sorted(
        {int(found[1]) for part in summary.missing_parts if (found := PART_SHARD.search(part))}
    )
    generate = [
        format_command("generate", run, f"--shard {shard}") for shard in shards[:MAX_SHARD_COMMANDS]
    ]
    some = len(shards) > MAX_SHARD_COMMANDS or summary.missing_parts_count > len(
        summary.missing_parts
    )
    return RunVerdict(
        "incomplete",
        f"Incomplete: {format_count(summary.missing)} of {pluralize(summary.images, 'image')} are missing.",
        "Run the job again, or its workflow: it makes what is missing and nothing else. "
        f"Or by hand, shard by shard{', of which these are the first' if some else ''}:",
        (*generate, format_aggregate_command(run, job, summary.failed_share, summary.accepted)),
    )


def _failed_verdict(summary: Summary, job: Job, run: str) -> RunVerdict:
    bad = f"{format_count(summary.not_ok)} of {pluralize(summary.images, 'image is', 'images are')} not ok"
    return RunVerdict(
        "failed",
        f"Too many images failed: {bad}.",
        f"That is {format_percent(summary.not_ok / summary.images)}, and {format_percent(summary.failed_share)} are accepted. "
        "See the causes below; make these images again, or accept what is there:",
        (format_command("retry", run), accept_command(run, job, summary)),
    )


def _exceeded_verdict(summary: Summary, job: Job, run: str, over: tuple[str, ...]) -> RunVerdict:
    found = {each.gate: each for each in gate_results(job.gates, summary)}
    said = (
        f"{name} {format_percent(found[name].share)} where {format_percent(found[name].allowed_share or 0)} may be"
        for name in over
    )
    return RunVerdict(
        "failed",
        f"{pluralize(len(over), 'gate')} found too many images.",
        f"{'; '.join(said)}. See the images below; mend the job, or accept what was found:",
        (accept_command(run, job, summary),),
    )
