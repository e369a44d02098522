"""What the gates found of an image, as the columns of a part."""

from collections.abc import Sequence
from dataclasses import dataclass

from imagekiln.steps.measures import Measures


@dataclass(frozen=True, slots=True)
class Quality:
    """The gates that marked an image, what the user's checks gave as reasons, and what was measured."""

    marks: tuple[str, ...]
    reason: str | None
    measures: Measures


def columns(found: Sequence[Quality | None]) -> dict[str, list[object]]:
    """The columns of these images; images that are not ok were not looked at, and have no marks."""
    return {
        "marks": [[] if each is None else list(each.marks) for each in found],
        "marks_reason": [None if each is None else each.reason for each in found],
        "contrast": [None if each is None else each.measures.contrast for each in found],
        "saturation": [None if each is None else each.measures.saturation for each in found],
        "phash": [None if each is None else each.measures.phash for each in found],
    }
