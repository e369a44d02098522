"""How far the work is: a bar on a terminal, JSON lines in a pod, N/M in the file that Argo watches."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Never, Protocol, TextIO

from tqdm import tqdm

LINE_INTERVAL_SECONDS = 10.0


class Progress(Protocol):
    """Is told how many images are made, and how many of them are there for good."""

    def start(self, total: int) -> None:
        """So many images are planned."""

    def add_existing(self, images: int) -> None:
        """So many of them were there already."""

    def add_drawn(self, images: int) -> None:
        """So many more are made. A kill would still lose them."""

    def add_committed(self, images: int) -> None:
        """So many of them are committed."""

    def close(self) -> None:
        """No more will be made."""


class TerminalProgress:
    """A bar on a terminal."""

    def __init__(self) -> None:
        """Show nothing until the start."""
        self._bar: tqdm[Never] | None = None

    def start(self, total: int) -> None:
        """So many images are planned."""
        self._bar = tqdm(total=total, unit=" images", dynamic_ncols=True)

    def add_existing(self, images: int) -> None:
        """Begin that much further on, so that the rate is that of images made."""
        if self._bar is not None and images:
            self._bar.initial += images
            self._bar.update(images)

    def add_drawn(self, images: int) -> None:
        """So many more are made."""
        if self._bar is not None:
            self._bar.update(images)

    def add_committed(self, images: int) -> None:
        """Nothing new to the eye."""

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


class JsonLinesProgress:
    """A JSON line now and then, and N/M in Argo's file."""

    def __init__(self, out: TextIO, argo_file: Path | None) -> None:
        """Write lines to `out`, and the progress to `argo_file` where there is one."""
        self._out = out
        self._argo_file = argo_file
        self._total = self._done = self._timed = 0
        self._told = time.monotonic()
        self._started: float | None = None

    def start(self, total: int) -> None:
        """So many images are planned."""
        self._total = total
        self._write_line()

    def add_existing(self, images: int) -> None:
        """So many of them were there already."""
        self._done += images
        self._write_line()

    def add_drawn(self, images: int) -> None:
        """So many more are made: they count for the rate."""
        if self._started is None:  # before this, the model was loaded
            self._started = time.monotonic()
        else:
            self._timed += images

    def add_committed(self, images: int) -> None:
        """So many of them are committed: what is told as done stays done, whoever is killed."""
        self._done += images
        if self._done == self._total or time.monotonic() - self._told > LINE_INTERVAL_SECONDS:
            self._write_line()

    def close(self) -> None:
        """Say where the work stands."""
        if self._done < self._total:
            self._write_line()

    def _write_line(self) -> None:
        self._told = time.monotonic()
        elapsed = self._told - (self._started or self._told)
        rate = round(self._timed / elapsed, 3) if self._timed and elapsed else None
        line = {
            "event": "progress",
            "done": self._done,
            "total": self._total,
            "images_per_second": rate,
        }
        print(json.dumps(line), file=self._out, flush=True)
        if self._argo_file is not None:
            with suppress(OSError):  # progress is for the eye; work goes on without it
                self._argo_file.write_text(f"{self._done}/{self._total}\n")


class NoProgress:
    """Shows nothing."""

    def start(self, total: int) -> None:
        """So many images are planned."""

    def add_existing(self, images: int) -> None:
        """So many of them were there already."""

    def add_drawn(self, images: int) -> None:
        """So many more are made. A kill would still lose them."""

    def add_committed(self, images: int) -> None:
        """So many of them are committed."""

    def close(self) -> None:
        """No more will be made."""


@contextmanager
def open_progress() -> Iterator[Progress]:
    """The progress that fits where we run."""
    argo = os.environ.get("ARGO_PROGRESS_FILE")  # a pod may have a terminal too
    person = sys.stderr.isatty() and not argo
    progress: Progress = (
        TerminalProgress()
        if person
        else JsonLinesProgress(sys.stderr, Path(argo) if argo else None)
    )
    try:
        yield progress
    finally:
        progress.close()
