"""A shard from a cold start, as a pod makes it; the child of the section `cold`.

    python -m tests.bench.gpu.cold_start RUN "$(date +%s.%N)"

Writes a JSON object to stderr at the end of each phase, with the seconds since the given time.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagekiln.steps.runs.image import DrawnImage, ImageRow
    from tests.bench.jobs import Check, Draw, DrawHook


class PhaseLog:
    """Writes the end of each phase once."""

    def __init__(self, started: float) -> None:
        """Take the time at which the process was started."""
        self._started = started
        self._ended: set[str] = set()

    def end(self, phase: str) -> None:
        """The phase is over."""
        if phase in self._ended:
            return
        self._ended.add(phase)
        entry = {"phase": phase, "seconds": round(time.time() - self._started, 2)}
        print(json.dumps(entry), file=sys.stderr, flush=True)


def main() -> None:
    """Make the shard, and write the phases."""
    uri = sys.argv[1]
    log = PhaseLog(float(sys.argv[2]))
    log.end("interpreter")

    from tests.bench.jobs import generate_hooked

    log.end("imports")
    generate_hooked(uri, _phases_hook(log))
    log.end("shard")


def _phases_hook(log: PhaseLog) -> "DrawHook":
    from tests.bench.gpu.timing import synchronize

    def hook(draw: "Draw") -> "Draw":
        log.end("load")

        def draw_and_log(
            rows: "Sequence[ImageRow]", size: int, check: "Check"
        ) -> "Sequence[DrawnImage]":
            def check_and_log() -> None:
                synchronize()
                log.end("first_step")
                check()

            images = draw(rows, size, check_and_log)
            list(images)
            log.end("first_batch")
            return images

        return draw_and_log

    return hook


if __name__ == "__main__":
    main()
