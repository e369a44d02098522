"""The verdict on an aggregated run: finished, incomplete or failed, and what to do next.

The exit code, the error on the terminal and the head of the report all follow from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from imagekiln.steps.aggregate.summary import AcceptancePolicy, Summary, summary_of
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.job.gates import BLANK, SAFETY
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.keys import REPORT_KEY, parse_part_key
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runtime.figures import format_count, format_percent, pluralize
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage import open_store

GateStatus = Literal["any", "within", "exceeded", "accepted"]
VerdictKind = Literal["finished", "incomplete", "failed"]
GATE_OF_STATUS = {"blank": BLANK, "filtered": SAFETY}  # gates that set a status and not a mark
MAX_IN_ERROR = 10  # parts, or causes of failure, in an error
MAX_SHARD_COMMANDS = 3
Steps = Mapping[str, Sequence[str]]  # commands by their purpose


@dataclass(frozen=True, slots=True)
class GateResult:
    """The number of a run's planned images that a gate found.

    `allowed_share` is None for a gate that only marks. `accepted` says that a person accepted
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
        """The meaning of the count for the run."""
        if self.allowed_share is None:
            return "any"
        if self.share <= self.allowed_share:
            return "within"
        return "accepted" if self.accepted else "exceeded"


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The end of a run: `headline` and `advice` are sentences, `commands` what to type next.

    `error` says the same in one line, for an exception; it is None if the run is finished.
    """

    kind: VerdictKind
    headline: str
    advice: str
    commands: tuple[str, ...] = ()
    error: str | None = None


def check_gate_names(job: Job, names: Sequence[str]) -> None:
    """Raise BadInput if one of the gates to accept is not among the job's."""
    for name in names:
        if name not in job.all_gates:
            raise BadInput(
                f"--accept {name}: the job has no such gate; it has {', '.join(job.all_gates)}. "
                "Choose one of them."
            )


def resolve_policy(
    run: Run, failed_share: float | None = None, gates: Sequence[str] = ()
) -> AcceptancePolicy:
    """The given share and gates, or those of the job, with the latest prices of the run.

    A finished run stays accepted with what it was accepted with before.
    """
    terms = run.terms
    finished_with = summary_of(run.store, run.head) if run.is_finished else None
    accepted = () if finished_with is None else finished_with.accepted
    if failed_share is None:
        failed_share = terms.failed_share
        if failed_share is None:
            failed_share = run.plan.job.limits.failed_share
        if finished_with is not None:
            failed_share = max(failed_share, finished_with.failed_share)
    accepted_gates = tuple(dict.fromkeys((*accepted, *gates)))
    return AcceptancePolicy(failed_share, accepted_gates, terms.price_per_hour)


def gate_results(job: Job, summary: Summary) -> tuple[GateResult, ...]:
    """The results of all gates of a run."""
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
    """The gates that found more images than they allow."""
    return [result for result in gate_results(job, summary) if result.status == "exceeded"]


def judge_run(summary: Summary, job: Job, uri: str) -> RunVerdict:
    """The verdict on the run at `uri`."""
    exceeded = exceeded_gates(summary, job)
    if summary.missing:
        return _incomplete_verdict(exceeded, summary, job, uri)
    if summary.too_many_failed:
        return _failed_verdict(exceeded, summary, job, uri)
    if exceeded:
        return _exceeded_verdict(exceeded, summary, job, uri)
    return _finished_verdict(summary, uri)


def require_finished(verdict: RunVerdict) -> None:
    """Raise Incomplete unless the run is finished."""
    if verdict.error is not None:
        raise Incomplete(verdict.error)


def _make_verdict(
    kind: VerdictKind,
    summary: Summary,
    headline: str,
    advice: str,
    steps: Steps,
    error: str | None = None,
) -> RunVerdict:
    """A verdict from its parts. `error` begins the error, which ends with the steps."""
    rejected = describe_rejected(summary)
    page_advice = f"{rejected}. {advice}" if rejected else advice
    commands: list[str] = []
    for purpose, step in steps.items():
        page_advice += f", or {purpose[0].lower()}{purpose[1:]}" if commands else f" {purpose}"
        commands += step
    if steps:
        page_advice += ":"
    if error is not None:
        sentences = [f"{purpose}: {' && '.join(step)}" for purpose, step in steps.items()]
        error = f"{error} {'. '.join(sentences)}"
    return RunVerdict(kind, headline, page_advice, tuple(commands), error)


def _finished_verdict(summary: Summary, uri: str) -> RunVerdict:
    if not summary.images:
        advice = "No row of the prompts was accepted."
        if summary.existing_images:
            images = pluralize(summary.existing_images, "image")
            advice = f"Earlier runs have made {images} that the prompts ask for."
        headline = "Finished: there was no image to make."
        return _make_verdict("finished", summary, headline, advice, {})

    headline = f"Finished: {describe_ok(summary)}."
    steps = {"To check the stored images by hash": [format_command("verify", uri)]}
    advice = "Nothing is left to generate."
    if summary.not_ok:
        if summary.retryable:
            steps["To generate these again"] = [format_command("retry", uri)]
        not_ok_images = pluralize(summary.not_ok, "image is", "images are")
        share = format_percent(summary.not_ok / summary.images)
        accepted = format_percent(summary.failed_share)
        advice = f"{not_ok_images} not ok ({share}), within the accepted {accepted}. "
        advice += describe_permanent_failures(summary)
    return _make_verdict("finished", summary, headline, advice.strip(), steps)


def describe_ok(summary: Summary) -> str:
    """The numbers of images that are ok, of candidates, and of images that were taken down."""
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
    """The number of rejected rows, and where they are listed; empty if there are none."""
    if not summary.rejected_rows:
        return ""
    rows = pluralize(summary.rows, "row was", "rows were")
    return f"{format_count(summary.rejected_rows)} of {rows} rejected ({summary.rejected_list})"


def describe_permanent_failures(summary: Summary) -> str:
    """A sentence on failures that a retry cannot fix, and a blank; empty if there are none."""
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
    commands.append(_aggregate_command(uri, job, summary.failed_share, summary.accepted))

    advice = ""
    if summary.failed / summary.images > summary.failed_share:
        images = pluralize(summary.failed, "image is", "images are")
        advice = f"{images} not ok, too: more than the job accepts. "
    advice += _gates_beside(exceeded)
    advice += "Run the job again, or its workflow: it generates what is missing and nothing else."
    if summary.retries:
        retry = format_command("retry", uri)
        advice += f" For parts that a retry has begun, resume it: {retry}."
    by_hand = "Or by hand, shard by shard"
    unlisted_parts = summary.missing_parts_count > len(summary.missing_parts)
    if len(shards) > MAX_SHARD_COMMANDS or unlisted_parts:
        by_hand += ", of which these are the first"

    listed = ", ".join(summary.missing_parts[:MAX_IN_ERROR])
    if summary.missing_parts_count > MAX_IN_ERROR:
        listed += f" and {summary.missing_parts_count - MAX_IN_ERROR} more"
    images = pluralize(summary.images, "image")
    missing = f"{format_count(summary.missing)} of {images} are missing"
    return _make_verdict(
        "incomplete",
        summary,
        f"Incomplete: {missing}.",
        advice,
        {by_hand: commands},
        f"{uri}: {missing}: {listed}. {advice}",
    )


def _gates_beside(exceeded: list[GateResult]) -> str:
    """A sentence on the gates that found too many images, if worse is wrong with the run."""
    if not exceeded:
        return ""
    return f"Gates found too many images, too: {describe_exceeded(exceeded)}. "


def describe_exceeded(exceeded: list[GateResult]) -> str:
    """The images that these gates found, and what was allowed."""
    return "; ".join(
        f"{result.gate} found {result.images} of {result.total} ({format_percent(result.share)}, "
        f"and {format_percent(result.allowed_share or 0)} are allowed)"
        for result in exceeded
    )


def list_causes(summary: Summary, most: int) -> str:
    """The most frequent causes of images that are not ok, in a line."""
    return "; ".join(
        f"{cause.images} {cause.status} ({cause.error})" for cause in summary.causes_not_ok[:most]
    )


def _failed_verdict(exceeded: list[GateResult], summary: Summary, job: Job, uri: str) -> RunVerdict:
    permanent = describe_permanent_failures(summary)
    steps: dict[str, list[str]] = {}
    if summary.retryable:
        others = "the others" if permanent else "them"
        steps[f"To generate {others} again"] = [format_command("retry", uri)]
    failed_share = max(summary.failed_share, summary.share_to_accept)
    steps["To accept them"] = [_accept_command(exceeded, summary, job, uri, failed_share)]

    share = format_percent(summary.not_ok / summary.images)
    allowed = format_percent(summary.failed_share)
    advice = f"That is {share}; {allowed} are accepted. {_gates_beside(exceeded)}{permanent}"
    images = pluralize(summary.images, "image is", "images are")
    not_ok = f"{format_count(summary.not_ok)} of {images} not ok"
    return _make_verdict(
        "failed",
        summary,
        f"Too many images failed: {not_ok}.",
        advice.strip(),
        steps,
        f"{uri}: {not_ok}: {list_causes(summary, MAX_IN_ERROR)}. {advice.strip()}",
    )


def _exceeded_verdict(
    exceeded: list[GateResult], summary: Summary, job: Job, uri: str
) -> RunVerdict:
    accept = _accept_command(exceeded, summary, job, uri, summary.failed_share)
    found = describe_exceeded(exceeded)
    return _make_verdict(
        "failed",
        summary,
        f"{pluralize(len(exceeded), 'gate')} found too many images.",
        f"{found}. See the images below, and change the job.",
        {"To accept them": [accept]},
        f"{uri}: gates found more images than the job allows: {found}. "
        f"See them in the report: {open_store(uri).uri_of(REPORT_KEY)}.",
    )


def _accept_command(
    exceeded: list[GateResult], summary: Summary, job: Job, uri: str, failed_share: float
) -> str:
    """The command that accepts this share of failures, and the gates that found too many images."""
    accepted = [*summary.accepted, *(result.gate for result in exceeded)]
    return _aggregate_command(uri, job, failed_share, accepted)


def _aggregate_command(uri: str, job: Job, failed_share: float, accepted: Sequence[str]) -> str:
    """The command that aggregates a run with this share of failures and these gates accepted."""
    options = [f"--accept {gate}" for gate in accepted]
    if failed_share != job.limits.failed_share:
        options.insert(0, f"--failed-share {failed_share}")
    return format_command("aggregate", uri, *options)
