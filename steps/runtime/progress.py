"""Progress: a bar on a terminal, JSON lines in a pod, N/M in Argo's progress file."""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Never, TextIO

from tqdm import TqdmWarning, tqdm

from imagekiln.steps.runtime.machine import ATTEMPT_VARIABLE, format_log_event
from imagekiln.steps.runtime.sanitize import sanitize_lines

LINE_INTERVAL_SECONDS = 10.0
ARGO_FILE_VARIABLE = "ARGO_PROGRESS_FILE"
ARGO_INTERVAL_SECONDS = 60.0  # each change makes Argo send a request to Kubernetes
# In the pods of our templates, Argo reads and reports the file every second.
ARGO_READ_SECONDS = 3.0


class Progress:
    """Counts of generated and committed images, shown to people or written for programs."""

    def start(self, total: int) -> None:
        """Set the number of planned images."""

    def add_existing(self, images: int) -> None:
        """Add images that were committed before this process started."""

    def add_drawn(self, images: int) -> None:
        """Add generated images, which are lost if the process is killed."""

    def add_committed(self, images: int) -> None:
        """Add newly committed images."""

    def show_event(self, name: str, sentence: str) -> None:
        """Show an event other than images."""

    def close(self) -> None:
        """Stop showing progress, whether or not the work is finished."""


class NoProgress(Progress):
    """Progress that shows nothing."""


class TerminalProgress(Progress):
    """A terminal bar that counts generated images, or the things that `noun` names."""

    def __init__(self, noun: str = "images") -> None:
        """Show nothing before the start."""
        self._noun = noun
        self._bar: tqdm[Never] | None = None

    def start(self, total: int) -> None:
        """Show the bar. In a notebook, show a widget if widgets are installed."""
        bar_class = tqdm
        if is_notebook():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TqdmWarning)  # without widgets, show a line
                bar_class = import_module("tqdm.auto").tqdm
        self._bar = bar_class(total=total, unit=f" {self._noun}", dynamic_ncols=True)

    def add_existing(self, images: int) -> None:
        """Advance the bar without effect on the rate."""
        if self._bar is not None and images:
            self._bar.initial += images
            self._bar.update(images)

    def add_drawn(self, images: int) -> None:
        """Advance the bar."""
        if self._bar is not None:
            self._bar.update(images)

    def show_event(self, name: str, sentence: str) -> None:  # noqa: ARG002  # for programs
        """Print the sentence above the bar."""
        tqdm.write(sanitize_lines(sentence), file=sys.stderr)

    def close(self) -> None:
        """Leave the bar in its current state."""
        if self._bar is not None:
            self._bar.close()


class JsonLinesProgress(Progress):
    """Writer of JSON lines every few seconds, and of N/M to Argo's progress file, if there is one.

    Only committed images are done. Argo adds up the files of all attempts, including failed ones. A
    later attempt therefore omits images that existed before it, and one that ends early writes N/N.
    """

    def __init__(
        self,
        out: TextIO,
        argo_file: Path | None = None,
        attempt: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write lines to `out`. Only the first attempt, 0, counts all images for Argo."""
        self._out = out
        self._argo_file = argo_file
        self._is_first = attempt == 0
        self._clock = clock
        self._argo_written_at = float("-inf")
        self._begin(0)

    def _begin(self, total: int) -> None:
        self._total = total
        self._existing = self._done = self._last_done = 0
        self._last_line_at = self._clock()
        # Excludes the first batch, which waits for the model to load.
        self._first_drawn_at: float | None = None
        self._drawn_since = 0

    def start(self, total: int) -> None:
        """Write the first line of the work, or of further work such as an export after a run."""
        self._begin(total)
        self._write_line()

    def add_existing(self, images: int) -> None:
        """Count existing images without effect on the rate."""
        if images:
            self._existing += images
            self._done += images
            self._write_line()

    def add_drawn(self, images: int) -> None:
        """Count generated images for the rate."""
        if self._first_drawn_at is None:
            self._first_drawn_at = self._clock()
        else:
            self._drawn_since += images

    def add_committed(self, images: int) -> None:
        """Count committed images."""
        self._done += images
        is_due = self._clock() - self._last_line_at > LINE_INTERVAL_SECONDS
        if self._done == self._total or is_due:
            self._write_line()

    def show_event(self, name: str, sentence: str) -> None:
        """Write the event as a line."""
        print(format_log_event(name, {"message": sentence}), file=self._out, flush=True)

    def close(self) -> None:
        """Write the final progress.

        Report this attempt's images to Argo, and leave it time to read them.
        """
        if self._done != self._last_done:
            self._write_line()
        if self._argo_file is not None and self._done < self._total:
            done = self._done if self._is_first else self._done - self._existing
            self._write_argo(done, done)
            time.sleep(ARGO_READ_SECONDS)
            self._argo_file = None  # only once, even if called again

    def _write_line(self) -> None:
        self._last_line_at = self._clock()
        self._last_done = self._done
        fields: dict[str, object] = {"done": self._done, "total": self._total}
        rate = self._rate()
        if rate is not None:
            fields["images_per_second"] = rate
        if rate:
            fields["seconds_left"] = round((self._total - self._done) / rate)
        print(format_log_event("progress", fields), file=self._out, flush=True)

        begins_or_ends = self._done in (self._existing, self._total)
        is_due = self._last_line_at - self._argo_written_at >= ARGO_INTERVAL_SECONDS
        if begins_or_ends or is_due:
            uncounted = 0 if self._is_first else self._existing
            self._write_argo(self._done - uncounted, self._total - uncounted)
            self._argo_written_at = self._last_line_at

    def _write_argo(self, done: int, total: int) -> None:
        if self._argo_file is not None:
            with suppress(OSError):  # progress is only shown; the work continues without it
                self._argo_file.write_text(f"{done}/{max(1, total)}\n")  # Argo rejects N/0

    def _rate(self) -> float | None:
        if self._first_drawn_at is None or not self._drawn_since:
            return None
        elapsed = self._last_line_at - self._first_drawn_at
        return round(self._drawn_since / elapsed, 3) if elapsed else None


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def is_watched() -> bool:
    """Return whether stderr is an interactive terminal or a notebook."""
    return sys.stderr.isatty() or is_notebook()


@contextmanager
def open_progress(noun: str = "images") -> Iterator[Progress]:
    """Show a bar on an interactive terminal, else JSON lines. `noun` names the things counted."""
    path = os.environ.get(ARGO_FILE_VARIABLE)
    progress: Progress
    if is_watched() and not path:  # a pod may have a terminal too
        progress = TerminalProgress(noun)
    else:
        attempt = os.environ.get(ATTEMPT_VARIABLE, "")
        attempts_before = int(attempt) if attempt.isdecimal() else 0
        progress = JsonLinesProgress(sys.stderr, Path(path) if path else None, attempts_before)
    try:
        yield progress
    finally:
        progress.close()
