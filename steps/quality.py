"""What the gates found of an image, as the columns of a part."""

from collections.abc import Sequence
from dataclasses import dataclass

from imagekiln.steps.measures import ImageMeasures


@dataclass(frozen=True, slots=True)
class ImageQuality:
    """The gates that marked an image, what the user's checks gave as reasons, and what was measured."""

    failed_gates: tuple[str, ...]
    reason: str | None
    measures: ImageMeasures


def quality_columns(found: Sequence[ImageQuality | None]) -> dict[str, list[object]]:
    """The columns of these images; images that are not ok were not looked at, and have no marks."""
    return {
        "marks": [[] if each is None else list(each.failed_gates) for each in found],
        "marks_reason": [None if each is None else each.reason for each in found],
        "contrast": [None if each is None else each.measures.contrast for each in found],
        "saturation": [None if each is None else each.measures.saturation for each in found],
        "phash": [None if each is None else each.measures.phash for each in found],
    }
