"""The gates in the report: what each found against its limit, with images by which to judge it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagekiln.steps.aggregate.report.contact_sheet import Sample
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.aggregate.verdict import GateResult, gate_results
from imagekiln.steps.job.gates import (
    BLANK,
    LOW_CONTRAST,
    MAX_HASH_DISTANCE,
    MAX_SATURATION,
    NEAR_DUPLICATE,
    OVER_SATURATED,
    SAFETY,
)
from imagekiln.steps.job.job import Job
from imagekiln.steps.runtime.figures import format_number, format_percent


@dataclass(frozen=True, slots=True)
class GateSection:
    """What one gate looks for and what it found, with marked images and why it marked them."""

    result: GateResult
    criterion: str
    examples: tuple[tuple[Sample, str], ...]


def gate_sections(
    job: Job, summary: Summary, samples_by_gate: Mapping[str, Sequence[Sample]]
) -> tuple[GateSection, ...]:
    """A section for every gate, in order."""
    sections = []
    for result in gate_results(job, summary):
        samples = samples_by_gate.get(result.gate, ())
        examples = tuple((sample, _mark_reason(result.gate, sample)) for sample in samples)
        sections.append(GateSection(result, _criterion(job, result.gate), examples))
    return tuple(sections)


def _criterion(job: Job, gate: str) -> str:
    criteria = {
        BLANK: "not finite, or a single flat color",
        SAFETY: "flagged by the model's safety checker",
        LOW_CONTRAST: f"contrast under {format_number(job.gates.low_contrast.below)}",
        OVER_SATURATED: f"more than {format_percent(MAX_SATURATION)} vivid pixels",
        NEAR_DUPLICATE: f"at most {MAX_HASH_DISTANCE} bits from an earlier image",
    }
    criteria |= {check.name: check.entry for check in job.gates.checks}
    criteria |= {name: score.criterion for name, score in job.scores.items()}
    return criteria[gate]


def _mark_reason(gate: str, sample: Sample) -> str:
    if gate == LOW_CONTRAST:
        return f"contrast {format_number(sample.contrast or 0)}"
    if gate == OVER_SATURATED:
        return f"{format_percent(sample.saturation or 0)} vivid pixels"
    if gate == NEAR_DUPLICATE:
        return f"looks like {sample.near_duplicate_of}"
    return (sample.marks_reason or "").removeprefix(f"{gate}: ")
