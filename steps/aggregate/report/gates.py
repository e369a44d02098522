"""What the gates found, as the report shows it: counts against shares, and pictures by which to judge a gate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagekiln.steps.aggregate.acceptance import GateResult, gate_results
from imagekiln.steps.aggregate.report.contact_sheet import Sample
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.job.gates import (
    BLANK,
    LOW_CONTRAST,
    NEAR_DUPLICATE,
    OVER_SATURATED,
    SAFETY,
    GateSettings,
)
from imagekiln.steps.runtime.figures import format_number, format_percent, pluralize

MAX_GATES_WITH_SAMPLES = 12  # that show pictures


@dataclass(frozen=True, slots=True)
class GateExample:
    """One marked image: which picture of the report it is, and why the gate marked it."""

    number: int
    sample: Sample
    reason: str


@dataclass(frozen=True, slots=True)
class GateSection:
    """What one gate looked for and found."""

    result: GateResult
    criterion: str
    examples: tuple[GateExample, ...]


def gate_sections(
    given: GateSettings, summary: Summary, pictures: Mapping[str, Sequence[Sample]], first: int
) -> tuple[GateSection, ...]:
    """Every gate in its order. `pictures` by gate, of which the first is the report's picture number `first`."""
    found = []
    for finding in gate_results(given, summary):
        some = pictures.get(finding.gate, ())
        examples = (
            GateExample(first + place, each, _mark_reason(finding.gate, each))
            for place, each in enumerate(some)
        )
        found.append(GateSection(finding, _criterion(given, finding.gate), tuple(examples)))
        first += len(some)
    return tuple(found)


def top_gates(
    pictures: Mapping[str, Sequence[Sample]], counts: Mapping[str, int]
) -> dict[str, Sequence[Sample]]:
    """The pictures of those gates that marked the most, in the gates' order."""
    frequent = sorted(pictures, key=lambda gate: -counts.get(gate, 0))[:MAX_GATES_WITH_SAMPLES]
    return {gate: each for gate, each in pictures.items() if gate in frequent}


def _criterion(given: GateSettings, gate: str) -> str:
    near = given.near_duplicate
    entries = {check.name: check.entry for check in given.checks}
    said = {
        BLANK: "not finite, or one flat colour",
        SAFETY: "refused by the model's safety checker",
        LOW_CONTRAST: f"contrast under {format_number(given.low_contrast.below)}",
        OVER_SATURATED: f"more than {format_percent(given.over_saturated.above)} vivid pixels",
        NEAR_DUPLICATE: f"at most {pluralize(near.distance if near else 0, 'bit')} from an earlier image",
    }
    return said[gate] if gate in said else entries[gate]


def _mark_reason(gate: str, picture: Sample) -> str:
    measured = {
        LOW_CONTRAST: f"contrast {format_number(picture.contrast or 0)}",
        OVER_SATURATED: f"{format_percent(picture.saturation or 0)} vivid pixels",
        NEAR_DUPLICATE: f"looks like {picture.near_duplicate_of}",
    }
    return measured.get(gate, (picture.marks_reason or "").removeprefix(f"{gate}: "))
