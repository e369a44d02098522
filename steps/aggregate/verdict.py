"""The verdict on an aggregated run: finished, incomplete or failed, and what to do next.

The exit code, the error on the terminal and the head of the report all follow from it.
"""

from dataclasses import dataclass, replace
from typing import Literal

from imagekiln.steps.aggregate.acceptance import format_aggregate_command
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.job.gates import BLANK, SAFETY
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.keys import REPORT_KEY, parse_part_key
from imagekiln.steps.runtime.figures import format_count, format_percent, pluralize
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage import open_store

GateStatus = Literal["any", "within", "exceeded", "accepted"]
VerdictKind = Literal["finished", "incomplete", "failed"]
GATE_OF_STATUS = {"blank": BLANK, "filtered": SAFETY}  # gates that set a status and not a mark
MAX_IN_ERROR = 10  # parts, or causes of failure, in an error
MAX_SHARD_COMMANDS = 3


@dataclass(frozen=True, slots=True)
class GateResult:
    """How many of a run's planned images a gate found.

    `allowed_share` is None for a gate that only marks; `accepted` says that a person accepted
    whatever the gate found.
    """

    gate: str
    images: int
    total: int
    allowed_share: float | None
    accepted: bool

    @property
    def share(self) -> float:
        """The images found, as a share of all planned images."""
        return self.images / self.total if self.total else 0.0

    @property
    def status(self) -> GateStatus:
        """What the count means for the run."""
        if self.allowed_share is None:
            return "any"
        if self.share <= self.allowed_share:
            return "within"
        return "accepted" if self.accepted else "exceeded"


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """How a run ended: `headline` and `advice` are sentences, `commands` what to type next.

    `error` says the same in one line, for an exception; it is None where the run is finished.
    """

    kind: VerdictKind
    headline: str
    advice: str
    commands: tuple[str, ...]
    error: str | None = None


def gate_results(job: Job, summary: Summary) -> tuple[GateResult, ...]:
    """What each gate found in a run."""
    counts = dict(summary.marks)
    for status, gate in GATE_OF_STATUS.items():
        counts.setdefault(gate, summary.statuses.get(status, 0))
    return tuple(
        GateResult(
            name,
            counts.get(name, 0),
            summary.images,
            gate.share,
            name in summary.accepted,
        )
        for name, gate in job.all_gates.items()
    )


def exceeded_gates(summary: Summary, job: Job) -> list[GateResult]:
    """The gates that found more images in a run than they allow."""
    return [result for result in gate_results(job, summary) if result.status == "exceeded"]


def judge_run(summary: Summary, job: Job, uri: str) -> RunVerdict:
    """The verdict on the run at `uri`."""
    exceeded = exceeded_gates(summary, job)
    if summary.missing:
        verdict = _incomplete_verdict(exceeded, summary, job, uri)
    elif summary.too_many_failed:
        verdict = _failed_verdict(exceeded, summary, job, uri)
    elif exceeded:
        verdict = _exceeded_verdict(exceeded, summary, job, uri)
    else:
        verdict = _finished_verdict(summary, uri)
    rejected = describe_rejected(summary)
    if not rejected:
        return verdict
    return replace(verdict, advice=f"{rejected}. {verdict.advice}")


def require_finished(verdict: RunVerdict) -> None:
    """Raise Incomplete unless the run is finished."""
    if verdict.error is not None:
        raise Incomplete(verdict.error)


def _finished_verdict(summary: Summary, uri: str) -> RunVerdict:
    if not summary.images:
        advice = "No row of the prompts was accepted."
        if summary.existing_images:
            images = pluralize(summary.existing_images, "image")
            advice = f"Earlier runs have made {images} that the prompts ask for."
        return RunVerdict("finished", "Finished: there was no image to make.", advice, ())

    headline = f"Finished: {describe_ok(summary)}."
    verify = format_command("verify", uri)
    if not summary.not_ok:
        advice = "Nothing is left to generate. To read everything back and check it by hash:"
        return RunVerdict("finished", headline, advice, (verify,))

    commands = [verify]
    purpose = "To check the stored images by hash"
    if summary.retryable:
        commands.append(format_command("retry", uri))
        purpose += ", or to generate these again"
    not_ok_images = pluralize(summary.not_ok, "image is", "images are")
    not_ok_share = format_percent(summary.not_ok / summary.images)
    return RunVerdict(
        "finished",
        headline,
        f"{not_ok_images} not ok ({not_ok_share}), within the accepted "
        f"{format_percent(summary.failed_share)}. "
        f"{describe_permanent_failures(summary)}{purpose}:",
        tuple(commands),
    )


def describe_ok(summary: Summary) -> str:
    """How many images are ok, which candidates have won, and how many images were taken down."""
    wanted = pluralize(summary.ok + summary.not_ok, "image is", "images are")
    if summary.ok == summary.images:
        return f"all {wanted} ok"
    images_ok = f"{wanted} ok"
    if summary.not_ok:
        images_ok = f"{format_count(summary.ok)} of {images_ok}"
    clauses = [images_ok]
    if summary.outscored:
        clauses.append(f"the best of {format_count(summary.images)} candidates")
    if summary.forgotten:
        clauses.append(f"{pluralize(summary.forgotten, 'was', 'were')} taken down")
    return ", ".join(clauses)


def describe_rejected(summary: Summary) -> str:
    """How many rows were rejected, and where they are listed; empty if none was."""
    if not summary.rejected_rows:
        return ""
    rows = pluralize(summary.rows, "row was", "rows were")
    return f"{format_count(summary.rejected_rows)} of {rows} rejected ({summary.rejected_list})"


def describe_permanent_failures(summary: Summary) -> str:
    """How many failures another try cannot mend, and what mends them, as a sentence and a blank.

    Empty where there are none.
    """
    count = summary.permanent_failures
    if not count:
        return ""
    images = pluralize(count, "failed image")
    return (
        f"{images} cannot be fixed by trying again, so retry skips them: "
        "correct their rows or settings, and run those as a new job. "
    )


def _incomplete_verdict(
    exceeded: list[GateResult], summary: Summary, job: Job, uri: str
) -> RunVerdict:
    locations = filter(None, map(parse_part_key, summary.missing_parts))
    shards = sorted({shard for _, shard in locations})
    commands = [
        format_command("generate", uri, f"--shard {shard}") for shard in shards[:MAX_SHARD_COMMANDS]
    ]
    aggregate = format_aggregate_command(
        uri,
        job,
        summary.failed_share,
        summary.accepted,
    )
    commands.append(aggregate)

    further = _gates_beside(exceeded)
    if summary.failed / summary.images > summary.failed_share:
        images = pluralize(summary.failed, "image is", "images are")
        further = f"{images} not ok, too: more than the job accepts. {further}"
    by_hand = "Or by hand, shard by shard"
    if summary.retries:
        resume = f"For parts that a retry has begun, resume it: {format_command('retry', uri)}. "
        by_hand = f"{resume}{by_hand}"
    unlisted_parts = summary.missing_parts_count > len(summary.missing_parts)
    if len(shards) > MAX_SHARD_COMMANDS or unlisted_parts:
        by_hand += ", of which these are the first"

    listed = ", ".join(summary.missing_parts[:MAX_IN_ERROR])
    if summary.missing_parts_count > MAX_IN_ERROR:
        listed += f" and {summary.missing_parts_count - MAX_IN_ERROR} more"
    images = pluralize(summary.images, "image")
    return RunVerdict(
        "incomplete",
        f"Incomplete: {format_count(summary.missing)} of {images} are missing.",
        f"{further}Run the job again, or its workflow: it generates what is missing and nothing "
        f"else. {by_hand}:",
        tuple(commands),
        f"{uri}: {summary.missing} of {summary.images} images are missing: {listed}. "
        f"{further}To generate them, run the job again. {by_hand}: {' && '.join(commands)}",
    )


def _gates_beside(exceeded: list[GateResult]) -> str:
    """A sentence on the gates that found too many images, if worse is wrong with the run."""
    if not exceeded:
        return ""
    return f"Gates found too many images, too: {_describe_shares(exceeded)}. "


def _describe_shares(exceeded: list[GateResult]) -> str:
    return "; ".join(
        f"{result.gate} {format_percent(result.share)}, "
        f"where {format_percent(result.allowed_share or 0)} are allowed"
        for result in exceeded
    )


def list_causes(summary: Summary, most: int) -> str:
    """The most frequent causes of images that are not ok, in a line."""
    return "; ".join(
        f"{cause.images} {cause.status} ({cause.error})" for cause in summary.causes_not_ok[:most]
    )


def _failed_verdict(exceeded: list[GateResult], summary: Summary, job: Job, uri: str) -> RunVerdict:
    failed_share = max(summary.failed_share, summary.share_to_accept)
    accept = _accept_command(exceeded, summary, job, uri, failed_share)
    permanent = describe_permanent_failures(summary)
    others = "the others" if permanent else "them"
    retry = format_command("retry", uri)
    commands = (retry, accept) if summary.retryable else (accept,)
    advice = f"Generate {others} again, or accept the run as it is:"
    if not summary.retryable:
        advice = "Accept the run as it is:"
    again = f"To generate {others} again: {retry}. " if summary.retryable else ""
    not_ok_share = format_percent(summary.not_ok / summary.images)
    all_images = pluralize(summary.images, "image is", "images are")
    further = f"{_gates_beside(exceeded)}{permanent}"
    return RunVerdict(
        "failed",
        f"Too many images failed: {format_count(summary.not_ok)} of {all_images} not ok.",
        f"That is {not_ok_share}; {format_percent(summary.failed_share)} are accepted. "
        f"See the causes below. {further}{advice}",
        commands,
        f"{uri}: {summary.not_ok} of {summary.images} images are not ok: "
        f"{list_causes(summary, MAX_IN_ERROR)}. {further}{again}To accept them: {accept}",
    )


def _exceeded_verdict(
    exceeded: list[GateResult], summary: Summary, job: Job, uri: str
) -> RunVerdict:
    counts = "; ".join(
        f"{result.gate} found {result.images} of {result.total} "
        f"(share {result.share:.3g}, allowed {result.allowed_share:g})"
        for result in exceeded
    )
    accept = _accept_command(exceeded, summary, job, uri, summary.failed_share)
    return RunVerdict(
        "failed",
        f"{pluralize(len(exceeded), 'gate')} found too many images.",
        f"{_describe_shares(exceeded)}. See the images below. Change the job, or accept what was "
        "found:",
        (accept,),
        f"{uri}: gates found more images than the job allows: {counts}. "
        f"See them in the report: {open_store(uri).uri_of(REPORT_KEY)}. "
        f"To accept them: {accept}",
    )


def _accept_command(
    exceeded: list[GateResult], summary: Summary, job: Job, uri: str, failed_share: float
) -> str:
    """The command that accepts this share of failures, and the gates that found too many images."""
    gates_to_accept = [result.gate for result in exceeded]
    accepted = (*summary.accepted, *gates_to_accept)
    return format_aggregate_command(uri, job, failed_share, accepted)
