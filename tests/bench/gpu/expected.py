"""What each figure should be, so that a bad one is known at once.

Absolute values are for an H200 in bfloat16 and the real shapes: its matrix products reach 770 to
800 TFLOP/s, and a share of a limit is a share of what the same run measured. Ratios hold on any
CUDA device, and what the program promises holds anywhere.
"""

import math
from dataclasses import dataclass
from typing import Literal

Scope = Literal["anywhere", "cuda", "h200"]


@dataclass(frozen=True, slots=True)
class Expected:
    """The bounds of a figure, and where they hold."""

    scope: Scope
    low: float | None = None
    high: float | None = None

    def contains(self, value: float) -> bool:
        """Whether a value lies between the bounds. One that is not a number does not."""
        low = self.low
        high = self.high
        if low is None:
            low = -math.inf
        if high is None:
            high = math.inf
        return low <= value <= high

    def describe(self, unit: str) -> str:
        """The bounds as text."""
        if self.low == self.high:
            bounds = f"{self.low:g}"
        elif self.low is None:
            bounds = f"at most {self.high:g}"
        elif self.high is None:
            bounds = f"at least {self.low:g}"
        else:
            bounds = f"{self.low:g} to {self.high:g}"
        return f"{bounds} {unit}".rstrip()


EXPECTED = {
    "machine.matmul": Expected("h200", 770, 800),
    "decoder.image": Expected("h200", None, 31),
    "denoiser.sdxl": Expected("h200", 60, None),
    "denoiser.flux": Expected("h200", 67, None),
    "denoiser.flux-fp8": Expected("h200", 90, None),
    "rates.job_of_bare": Expected("cuda", 0.97, None),
    "rates.job_of_naive": Expected("cuda", 3, None),
    "fp8.ratio": Expected("cuda", 1.1, None),
    "shortcuts.ratio": Expected("cuda", 1.15, None),
    "cold.kept": Expected("h200", None, 20),
    "faults.memory_ran_out": Expected("anywhere", 1, 1),
    "faults.memory_images_ok": Expected("anywhere", 100, 100),
    "faults.memory_equal_bytes": Expected("anywhere", 100, 100),
    "faults.memory_speed_after": Expected("cuda", 0.97, None),
    "faults.lost_exit_code": Expected("anywhere", 75, 75),
    "faults.lost_committed": Expected("anywhere", 0, 1),
    "faults.lost_failed_rows": Expected("anywhere", 0, 0),
    "faults.lost_resumed": Expected("anywhere", 100, 100),
    "faults.stop_exit_code": Expected("anywhere", 75, 75),
    "faults.stop_seconds": Expected("anywhere", None, 15),
}
