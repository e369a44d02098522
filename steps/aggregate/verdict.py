"""Verdicts on aggregated runs: finished, incomplete or failed, with the next steps.

The exit code, the error message and the head of the report follow from the verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """The result of a gate: the number of images that it found, of `total` planned images.

    `allowed_share` is None for a gate that only marks. With `accepted`, a user accepted any number
    of images.
    """

    gate: str
    images: int
    total: int
    allowed_share: float | None
    accepted: bool

    @property
    def share(self) -> float:
        """Found images as a share of all planned images."""
        return self.images / self.total if self.total else 0.0

    @property
    def status(self) -> GateStatus:
        """Status of the gate, by its limit."""
        if self.allowed_share is None:
            return "any"
        if self.share <= self.allowed_share:
            return "within"
        return "accepted" if self.accepted else "exceeded"

    def __str__(self) -> str:
        """Format the number of images found, and the limit."""
        return (
            f"{self.gate} found {self.images} of {self.total} ({format_percent(self.share)}, "
            f"and {format_percent(self.allowed_share or 0)} are allowed)"
        )


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The verdict on a run. `headline` and `advice` are sentences, `steps` commands by purpose.

    `error` is the message of an exception, in one line; None if the run is finished.
    """

    kind: VerdictKind
    headline: str
    advice: str
    steps: Steps = field(default_factory=dict)
    error: str | None = None


def check_gate_names(job: Job, names: Sequence[str]) -> None:
    """Raise BadInput if the job does not have one of the gates."""
    for name in names:
        if name not in job.all_gates:
            raise BadInput(
                f"--accept {name}: the job has no such gate; it has {', '.join(job.all_gates)}. "
                "Choose one of them."
            )


def resolve_policy(
    run: Run, failed_share: float | None = None, gates: Sequence[str] = ()
) -> AcceptancePolicy:
    """Return the policy for a run, from the arguments, the run's terms and the job.

    A finished run keeps its earlier limits and accepted gates.
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
    """Return the results of all gates of a run."""
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
    """Return the results of gates that exceed their limits."""
    return [result for result in gate_results(job, summary) if result.status == "exceeded"]


def find_problems(summary: Summary, job: Job) -> dict[str, str]:
    """Find problems with a run's images by the job's limits. Maps each problem to its details."""
    problems: dict[str, str] = {}
    images = pluralize(summary.images, "image")
    if summary.missing:
        parts = ", ".join(summary.missing_parts[:MAX_IN_ERROR])
        unlisted = summary.missing_parts_count - MAX_IN_ERROR
        if unlisted > 0:
            parts += f" and {unlisted} more"
        problems[f"{format_count(summary.missing)} of {images} are missing"] = parts
    if summary.too_many_failed:
        causes = "; ".join(
            f"{cause.images} {cause.status} ({cause.error})"
            for cause in summary.causes_not_ok[:MAX_IN_ERROR]
        )
        accepted = format_percent(summary.failed_share)
        failed = f"{format_count(summary.failed)} of {images} are not ok"
        problems[failed] = f"{causes}. {accepted} are accepted"
    if exceeded := exceeded_gates(summary, job):
        gates = pluralize(len(exceeded), "gate")
        problems[f"{gates} found too many images"] = "; ".join(map(str, exceeded))
    return problems


def judge_run(summary: Summary, job: Job, uri: str) -> RunVerdict:
    """Judge the run at `uri` by its summary."""
    problems = find_problems(summary, job)
    advice = [f"{describe_rejected(summary)}."] if summary.rejected_rows else []
    if not problems:
        return _finished_verdict(summary, uri, advice)
    kind: VerdictKind = "failed"
    if summary.missing:
        kind = "incomplete"
        advice.append(
            "Run the job again, or its workflow: it generates what is missing and nothing else."
        )
        steps = _steps_to_complete(summary, job, uri)
    else:
        advice.append(describe_permanent_failures(summary))
        steps = _steps_to_accept(summary, job, uri)
    page_advice = " ".join(filter(None, advice))
    sentences = [
        *(f"{problem}: {details}" for problem, details in problems.items()),
        f"See {open_store(uri).uri_of(REPORT_KEY)}",
        *filter(None, [page_advice.rstrip(".")]),
        *(f"{purpose}: {' && '.join(commands)}" for purpose, commands in steps.items()),
    ]
    return RunVerdict(
        kind,
        f"{kind.capitalize()}: {'; '.join(problems)}.",
        page_advice,
        steps,
        f"{uri}: {'. '.join(sentences)}",
    )


def require_finished(verdict: RunVerdict) -> None:
    """Raise Incomplete unless the run is finished."""
    if verdict.error is not None:
        raise Incomplete(verdict.error)


def _finished_verdict(summary: Summary, uri: str, advice: list[str]) -> RunVerdict:
    if not summary.images:
        advice.append(
            f"Earlier runs have made {pluralize(summary.existing_images, 'image')} of these rows."
        )
        headline = "Finished: there was no image to make."
        return RunVerdict("finished", headline, " ".join(advice))
    steps = {"Check the stored images by hash": [format_command("verify", uri)]}
    if summary.not_ok:
        advice.append(f"{format_percent(summary.failed_share)} of the images may fail.")
        advice.append(describe_permanent_failures(summary))
    if summary.retryable:
        steps["Generate failed images again"] = [format_command("retry", uri)]
    headline = f"Finished: {describe_ok(summary)}."
    return RunVerdict("finished", headline, " ".join(filter(None, advice)), steps)


def describe_ok(summary: Summary) -> str:
    """Describe the numbers of ok images, candidates and images taken down."""
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
    """Describe the number of rejected rows and their list; empty if there are none."""
    if not summary.rejected_rows:
        return ""
    rows = pluralize(summary.rows, "row was", "rows were")
    return f"{format_count(summary.rejected_rows)} of {rows} rejected ({summary.rejected_list})"


def describe_permanent_failures(summary: Summary) -> str:
    """Describe failures that a retry cannot fix; empty if there are none."""
    if not summary.permanent_failures:
        return ""
    images = pluralize(summary.permanent_failures, "failed image")
    return (
        f"{images} cannot be fixed by trying again, so retry skips them: "
        "correct their rows or settings, and run those as a new job."
    )


def _steps_to_complete(summary: Summary, job: Job, uri: str) -> Steps:
    places = filter(None, map(parse_part_key, summary.missing_parts))
    shards = sorted({shard for _, shard in places})
    commands = [
        format_command("generate", uri, f"--shard {shard}") for shard in shards[:MAX_SHARD_COMMANDS]
    ]
    commands.append(_aggregate_command(uri, job, summary.failed_share, summary.accepted))
    steps = {"Or by hand, shard by shard": commands}
    if summary.retries:
        steps["Or resume a retry that has begun"] = [format_command("retry", uri)]
    return steps


def _steps_to_accept(summary: Summary, job: Job, uri: str) -> Steps:
    steps: dict[str, list[str]] = {}
    failed_share = summary.failed_share
    if summary.too_many_failed:
        failed_share = max(failed_share, summary.share_to_accept)
        if summary.retryable:
            steps["To generate them again"] = [format_command("retry", uri)]
    exceeded = [result.gate for result in exceeded_gates(summary, job)]
    accepted = [*summary.accepted, *exceeded]
    steps["To accept them"] = [_aggregate_command(uri, job, failed_share, accepted)]
    return steps


def _aggregate_command(uri: str, job: Job, failed_share: float, accepted: Sequence[str]) -> str:
    """Format the command that aggregates a run with these limits."""
    options = [f"--accept {gate}" for gate in accepted]
    if failed_share != job.limits.failed_share:
        options.insert(0, f"--failed-share {failed_share}")
    return format_command("aggregate", uri, *options)
