"""The settings of the quality gates: which images they mark, and how many marks fail the run."""

import sys
from typing import Annotated

from pydantic import Field, field_validator

from imagekiln.steps.job.fields import Number, Settings, Share, require_unique

LOW_CONTRAST = "low_contrast"
OVER_SATURATED = "over_saturated"
NEAR_DUPLICATE = "near_duplicate"
# Statuses of an image rather than marks: `blank` and `filtered`.
BLANK = "blank"
SAFETY = "safety"
GATE_NAMES = {LOW_CONTRAST, OVER_SATURATED, NEAR_DUPLICATE, BLANK, SAFETY}
STATUS_NAMES = {"ok", "filtered", "failed", "missing"}
ENTRY_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
# The largest share of the most vivid pixels.
MAX_SATURATION = 0.9
# Images whose perceptual hashes differ in at most so many of 64 bits look alike.
MAX_HASH_DISTANCE = 4


class Gate(Settings):
    """A gate that finds images that are not as they should be."""

    share: Share | None = Field(
        default=None,
        description="The run fails when the gate finds more than this share of the images.",
    )


class LowContrastGate(Gate):
    """Marks images of low contrast. Contrast is 0 for one flat color and at most 0.5."""

    below: Annotated[Number, Field(ge=0, le=0.5)] = Field(
        default=0.02, description="Marks an image of less contrast."
    )


def require_own_function(entry: str) -> str:
    """The entry of a function. Raises ValueError if it belongs to Python.

    A plan, which somebody else may have written, names what is imported and called.
    """
    if entry.partition(":")[0].partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f'is "{entry}", which belongs to Python; name a function of your own')
    return entry


class UserCheckGate(Gate):
    """A check of the user's own, imported where the images are generated."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,39}$",
        description="At most 40 lower-case letters, digits and underscores, a letter first.",
    )
    entry: str = Field(
        pattern=ENTRY_PATTERN,
        max_length=200,
        description="The function, as package.module:function.",
    )

    @field_validator("entry")
    @classmethod
    def _require_own_function(cls, entry: str) -> str:
        return require_own_function(entry)

    @field_validator("name")
    @classmethod
    def _require_free_name(cls, name: str) -> str:
        if name in GATE_NAMES or name in STATUS_NAMES:
            raise ValueError(
                f'is "{name}", the name of a built-in gate or of a status; choose another name'
            )
        return name


class GateSettings(Settings):
    """Measurements of each image. A gate only marks, unless it has a share."""

    blank: Gate = Gate()
    safety: Gate = Gate()
    low_contrast: LowContrastGate = LowContrastGate()
    over_saturated: Gate = Gate()
    near_duplicate: Gate | None = Field(
        default=None, description="Images are compared with earlier ones only if this is set."
    )
    checks: Annotated[tuple[UserCheckGate, ...], Field(max_length=100)] = Field(
        default=(), description="Checks of your own."
    )

    @field_validator("checks")
    @classmethod
    def _require_unique_names(cls, checks: tuple[UserCheckGate, ...]) -> tuple[UserCheckGate, ...]:
        require_unique("check", [check.name for check in checks])
        return checks

    @property
    def marking_gates(self) -> dict[str, Gate]:
        """The gates that mark images, by the names of their marks, in the order of those."""
        gates: dict[str, Gate] = {
            LOW_CONTRAST: self.low_contrast,
            OVER_SATURATED: self.over_saturated,
        }
        gates.update({check.name: check for check in self.checks})
        if self.near_duplicate is not None:
            gates[NEAR_DUPLICATE] = self.near_duplicate
        return gates

    @property
    def all_gates(self) -> dict[str, Gate]:
        """Every gate by its name, with those that find a status."""
        return {BLANK: self.blank, SAFETY: self.safety, **self.marking_gates}
