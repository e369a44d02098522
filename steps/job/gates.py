"""The settings of the quality gates: what is marked, and how much of it fails the run."""

from typing import Annotated

from pydantic import Field, field_validator

from imagekiln.steps.job.fields import Integer, Number, Settings, Share

LOW_CONTRAST, OVER_SATURATED, NEAR_DUPLICATE = "low_contrast", "over_saturated", "near_duplicate"
BLANK, SAFETY = "blank", "safety"  # not marks but statuses: `blank` and `filtered`
RESERVED_GATE_NAMES = {
    LOW_CONTRAST,
    OVER_SATURATED,
    NEAR_DUPLICATE,
    BLANK,
    SAFETY,
    "ok",
    "filtered",
    "failed",
    "missing",
}
MAX_HASH_DISTANCE = (
    8  # of 64 bits; beyond it, pictures that have nothing to do with each other agree
)


class Gate(Settings):
    """A gate that finds what is not as it should be."""

    share: Share | None = Field(
        None, description="The run fails when it finds more than this; absent, it never does."
    )


class LowContrastGate(Gate):
    """Marks images whose contrast is low. Contrast is 0 for one flat colour and at most 0.5."""

    below: Annotated[Number, Field(ge=0, le=0.5)] = Field(
        0.02, description="Marks an image of less contrast."
    )


class OverSaturatedGate(Gate):
    """Marks images that are nearly all of the most vivid colours there are."""

    above: Share = Field(0.9, description="Marks an image with a larger share of vivid pixels.")


class NearDuplicateGate(Gate):
    """Marks images that look like an earlier one of the run."""

    distance: Annotated[Integer, Field(ge=0, le=MAX_HASH_DISTANCE)] = Field(
        4,
        description="Marks an image whose perceptual hash differs from an earlier one's in so many bits of 64.",
    )


class UserCheckGate(Gate):
    """A check of the user's own, imported where the images are made."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,39}$",
        description="At most 40 lower-case letters, digits and underscores, a letter first.",
    )
    entry: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        max_length=200,
        description="The function, as package.module:function.",
    )

    @field_validator("name")
    @classmethod
    def _require_free_name(cls, name: str) -> str:
        if name in RESERVED_GATE_NAMES:
            raise ValueError(f'is "{name}", which means something already; choose another name')
        return name


class GateSettings(Settings):
    """What is looked at in each image. A gate only marks, unless it has a share."""

    blank: Gate = Gate()
    safety: Gate = Gate()
    low_contrast: LowContrastGate = LowContrastGate()
    over_saturated: OverSaturatedGate = OverSaturatedGate()
    near_duplicate: NearDuplicateGate | None = Field(
        None, description="Absent, nothing is compared."
    )
    checks: Annotated[tuple[UserCheckGate, ...], Field(max_length=100)] = Field(
        (), description="Checks of your own."
    )

    @field_validator("checks")
    @classmethod
    def _require_unique_names(cls, checks: tuple[UserCheckGate, ...]) -> tuple[UserCheckGate, ...]:
        if len({check.name for check in checks}) < len(checks):
            raise ValueError("has two checks of one name; rename one")
        return checks

    @property
    def marking_gates(self) -> dict[str, Gate]:
        """The gates that mark, by the name that they mark with, in the order of an image's marks."""
        last = {} if self.near_duplicate is None else {NEAR_DUPLICATE: self.near_duplicate}
        own = {check.name: check for check in self.checks}
        return {LOW_CONTRAST: self.low_contrast, OVER_SATURATED: self.over_saturated, **own, **last}

    @property
    def all_gates(self) -> dict[str, Gate]:
        """Every gate by its name, those of a status too."""
        return {BLANK: self.blank, SAFETY: self.safety, **self.marking_gates}
