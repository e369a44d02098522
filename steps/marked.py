"""What the gates found, as the report shows it: counts against shares, and pictures by which to judge a gate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagekiln.steps import gates
from imagekiln.steps.gate_settings import BLANK, LOW_CONTRAST, NEAR_DUPLICATE, OVER_SATURATED, SAFETY, Gates
from imagekiln.steps.gates import Finding
from imagekiln.steps.lot import Sample
from imagekiln.steps.summary import Summary
from imagekiln.steps.wording import figure, of, percent

MOST_GATES = 12  # that show pictures


@dataclass(frozen=True, slots=True)
class Example:
    """One marked image: which picture of the report it is, and why the gate marked it."""

    place: int
    picture: Sample
    reason: str


@dataclass(frozen=True, slots=True)
class Marked:
    """What one gate looked for and found."""

    finding: Finding
    wanted: str
    examples: tuple[Example, ...]


def marked(given: Gates, summary: Summary, pictures: Mapping[str, Sequence[Sample]], first: int) -> tuple[Marked, ...]:
    """Every gate in its order. `pictures` by gate, of which the first is the report's picture number `first`."""
    found = []
    for finding in gates.findings(given, summary):
        some = pictures.get(finding.gate, ())
        examples = (Example(first + place, each, _reason(finding.gate, each)) for place, each in enumerate(some))
        found.append(Marked(finding, _wanted(given, finding.gate), tuple(examples)))
        first += len(some)
    return tuple(found)


def most_marked(pictures: Mapping[str, Sequence[Sample]], counts: Mapping[str, int]) -> dict[str, Sequence[Sample]]:
    """The pictures of those gates that marked the most, in the gates' order."""
    frequent = sorted(pictures, key=lambda gate: -counts.get(gate, 0))[:MOST_GATES]
    return {gate: each for gate, each in pictures.items() if gate in frequent}


def _wanted(given: Gates, gate: str) -> str:
    near = given.near_duplicate
    entries = {check.name: check.entry for check in given.checks}
    said = {
        BLANK: "not finite, or one flat colour",
        SAFETY: "refused by the model's safety checker",
        LOW_CONTRAST: f"contrast under {figure(given.low_contrast.below)}",
        OVER_SATURATED: f"more than {percent(given.over_saturated.above)} vivid pixels",
        NEAR_DUPLICATE: f"at most {of(near.distance if near else 0, 'bit')} from an earlier image",
    }
    return said[gate] if gate in said else entries[gate]


def _reason(gate: str, picture: Sample) -> str:
    measured = {
        LOW_CONTRAST: f"contrast {figure(picture.contrast or 0)}",
        OVER_SATURATED: f"{percent(picture.saturation or 0)} vivid pixels",
        NEAR_DUPLICATE: f"looks like {picture.near_duplicate_of}",
    }
    return measured.get(gate, (picture.marks_reason or "").removeprefix(f"{gate}: "))
