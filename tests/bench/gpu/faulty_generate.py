"""`imagekiln generate` with a fault in its second batch; the child of the section `faults`.

    python -m tests.bench.gpu.faulty_generate lost RUN
    python -m tests.bench.gpu.faulty_generate announce RUN

`lost` has the device fail, and `announce` writes a line to stderr once the batch is being drawn.
"""

import sys
import time
from collections.abc import Callable, Sequence

import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.workflows.cli.main import main as imagekiln

DRAWING_LINE = "the second batch is being drawn"
FAULTY_BATCH = 2
SIGNAL_SECONDS = 2.0  # for the signal to arrive, where a batch takes less
Check = Callable[[], None]


def lose_device() -> None:
    """Have the device fail as it does where an index is out of range: later, and for good."""
    if not torch.cuda.is_available():
        raise torch.AcceleratorError(
            "device-side assert triggered, as a stand-in for a device says"
        )
    index = torch.tensor([1 << 20], device="cuda")
    torch.zeros(1, device="cuda")[index]


def announce() -> None:
    """Say that the batch is being drawn."""
    print(DRAWING_LINE, file=sys.stderr, flush=True)
    if not torch.cuda.is_available():
        time.sleep(SIGNAL_SECONDS)


def add_fault(fault: Callable[[], None]) -> None:
    """Have every denoiser meet the fault at the first step of its second batch."""
    draw = Denoiser.draw
    batches = 0

    def draw_with_fault(
        self: Denoiser, rows: Sequence[ImageRow], size: int, check: Check
    ) -> Sequence[DrawnImage]:
        nonlocal batches
        batches += 1
        pending = [fault] if batches == FAULTY_BATCH else []

        def check_with_fault() -> None:
            if pending:
                pending.pop()()
            check()

        return draw(self, rows, size, check_with_fault)

    Denoiser.draw = draw_with_fault  # type: ignore[method-assign]  # only this process sees it


def main() -> None:
    """Run the command with the fault."""
    fault, uri = sys.argv[1:3]
    add_fault({"lost": lose_device, "announce": announce}[fault])
    imagekiln(["generate", uri, "--shard", "0"])


if __name__ == "__main__":
    main()
