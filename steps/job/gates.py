"""Settings of quality gates, which mark images and fail the run if too many are marked."""

import sys
from typing import Annotated

from pydantic import Field, field_validator

from imagekiln.steps.job.fields import Number, Settings, Share, require_unique

LOW_CONTRAST = "low_contrast"
OVER_SATURATED = "over_saturated"
NEAR_DUPLICATE = "near_duplicate"
# These gates set the statuses `blank` and `filtered` instead of marks.
BLANK = "blank"
SAFETY = "safety"
GATE_NAMES = {LOW_CONTRAST, OVER_SATURATED, NEAR_DUPLICATE, BLANK, SAFETY}
STATUS_NAMES = {"ok", "filtered", "failed", "missing"}
ENTRY_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
# Maximum share of vivid pixels.
MAX_SATURATION = 0.9
# Maximum number of differing bits, of 64, in the perceptual hashes of near-duplicates.
MAX_HASH_DISTANCE = 4


class Gate(Settings):
    """A quality gate, which finds defective images."""

    share: Share | None = Field(
        default=None,
        description="The run fails when the gate finds more than this share of the images.",
    )


class LowContrastGate(Gate):
    """A gate that marks images of low contrast. Contrast is between 0 for one color and 0.5."""

    below: Annotated[Number, Field(ge=0, le=0.5)] = Field(
        default=0.02, description="Marks an image of less contrast."
    )


def require_own_function(entry: str) -> str:
    """Return the entry of a user function. Raises ValueError if it is in the standard library.

    Plans may come from other people, and the functions that they name are imported and called.
    """
    if entry.partition(":")[0].partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f'is "{entry}", which belongs to Python; name a function of your own')
    return entry


class UserCheckGate(Gate):
    """A user-defined check, imported where the images are generated."""

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
    """The gates of a job. Without a `share`, a gate only marks images."""

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
        """Gates that mark images, by the names of their marks and in their order."""
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
        """All gates by name, including gates that set a status."""
        return {BLANK: self.blank, SAFETY: self.safety, **self.marking_gates}
