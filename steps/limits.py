"""What devices can do at most: floating-point operations a second, dense, as their makers' data sheets give them.

Where a sheet gives the figure with sparsity, it is halved here. float32 is the figure without TF32. 16 bits are those
of the tensor cores with sums in float32, which is how PyTorch uses them: on GeForce half of the figure for sums in
float16.

https://www.nvidia.com/en-us/data-center/ h200, h100, a100, l40s, l4, t4, v100 and hgx; for the A10G NVIDIA's A10G data
sheet, for the RTX 4090 NVIDIA's Ada GPU architecture white paper, appendix A.
"""

import re
from dataclasses import dataclass

SLICES = 7  # of a GPU that takes MIG, by https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
SLICE = re.compile(r" MIG (\d)(?:c\.\d)?g\.")
TERA = 1e12


@dataclass(frozen=True, slots=True)
class Limit:
    """A device's most, in 10^12 operations a second. None where it has no fast way to compute so."""

    bfloat16: float | None
    float16: float | None
    float32: float | None

    def of(self, dtype: str) -> float | None:
        """The most in a dtype by its name; None for one that is not here."""
        each = {"bfloat16": self.bfloat16, "float16": self.float16, "float32": self.float32}
        return each.get(dtype)


# By words of the name that CUDA gives, the first that fits.
LIMITS: tuple[tuple[str, Limit], ...] = (
    ("B200", Limit(2250, 2250, 75)),
    ("H200 NVL", Limit(835.5, 835.5, 60)),
    ("H200", Limit(989.5, 989.5, 67)),
    ("H100 NVL", Limit(835.5, 835.5, 60)),
    ("H100 PCIe", Limit(756.5, 756.5, 51)),
    ("H100", Limit(989.5, 989.5, 67)),
    ("A100", Limit(312, 312, 19.5)),
    ("L40S", Limit(362, 362, 91.6)),
    ("L4", Limit(121, 121, 30.3)),
    ("A10G", Limit(70, 70, 35)),
    ("A10", Limit(125, 125, 31.2)),
    ("T4", Limit(None, 65, 8.1)),
    ("V100", Limit(None, 125, 15.7)),
    ("RTX 4090", Limit(165.2, 165.2, 82.6)),
)


def limit(device: str, dtype: str) -> float | None:
    """The operations a second that a device of this name can do at most in a dtype; None where that is not known.

    Of a device that is cut by MIG, the share of the slice that its name tells of.
    """
    found = next((each for words, each in LIMITS if re.search(rf"\b{words}\b", device)), None)
    most = None if found is None else found.of(dtype)
    if most is None:
        return None
    cut = SLICE.search(device)
    return TERA * most * (int(cut[1]) / SLICES if cut else 1)
