"""How far the work is, for people, for logs and for Argo."""

import io
import json
import os
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from imagekiln.steps.runtime.progress import (
    JsonLinesProgress,
    NoProgress,
    TerminalProgress,
    open_progress,
)


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _events(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_event_is_a_line_of_json_in_a_log_and_a_sentence_on_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    event = ("help", "Shard 1 is done.")
    out = io.StringIO()
    JsonLinesProgress(out).show_event(*event)
    assert _events(out) == [{"event": "help", "message": "Shard 1 is done."}]
    NoProgress().show_event(*event)
    TerminalProgress().show_event(*event)
    assert capsys.readouterr().err == "Shard 1 is done.\n"


def test_lines_are_json_with_what_is_done_and_what_is_planned() -> None:
    out = io.StringIO()
    lines = JsonLinesProgress(out)
    lines.start(8)
    lines.add_existing(4)
    lines.add_drawn(4)
    lines.add_committed(4)
    lines.close()
    assert [(event["event"], event["done"], event["total"]) for event in _events(out)] == [
        ("progress", 0, 8),
        ("progress", 4, 8),
        ("progress", 8, 8),
    ]


def test_rate_leaves_out_the_first_batch_and_existing_images() -> None:
    out = io.StringIO()
    clock = Clock()
    lines = JsonLinesProgress(out, clock=clock)
    lines.start(100)
    lines.add_existing(50)
    clock.now = 60.0  # the model was loaded in the meantime, and the first batch drawn
    lines.add_drawn(10)
    clock.now = 65.0
    lines.add_drawn(40)
    lines.add_committed(50)
    assert _events(out)[-1]["done"] == 100
    first, second, *_, last = _events(out)
    assert "images_per_second" not in {*first, *second}  # there is none yet
    assert last["images_per_second"] == 8.0
    assert last["seconds_left"] == 0


def test_images_that_a_kill_would_lose_are_not_done(tmp_path: Path) -> None:
    out, file, clock = io.StringIO(), tmp_path / "progress", Clock()
    lines = JsonLinesProgress(out, file, clock=clock)
    lines.start(8)
    lines.add_drawn(4)
    clock.now = 60.0
    lines.add_committed(4)
    lines.add_drawn(3)
    assert _events(out)[-1]["done"] == 4
    lines.add_committed(4)
    assert file.read_text() == "8/8\n"


def test_argo_adds_up_attempts_and_has_each_image_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "progress"
    reads: list[str] = []

    def read(_: float) -> None:
        reads.append(file.read_text())

    monkeypatch.setattr(time, "sleep", read)
    made_by_attempt = [0, 30, 0, 20]
    existing = 50  # of an earlier workflow
    for attempt, made in enumerate(made_by_attempt):
        lines = JsonLinesProgress(io.StringIO(), file, attempt)
        lines.start(100)
        lines.add_existing(existing)
        if made:
            lines.add_committed(made)
        lines.close()
        lines.close()
        existing += made
    reads.append(file.read_text())

    assert reads == ["50/50\n", "30/30\n", "0/1\n", "20/20\n"]
    assert existing == 100


def test_a_pod_gets_lines_and_argo_s_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(tmp_path / "progress"))
    with open_progress() as progress:
        progress.start(3)
        progress.add_committed(3)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [json.loads(line)["done"] for line in printed.err.splitlines()] == [0, 3]
    assert (tmp_path / "progress").read_text() == "3/3\n"


@contextmanager
def _terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make stderr a terminal; yields the end from which its output can be read."""
    controller, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    with os.fdopen(terminal, "w") as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        yield controller
    os.close(controller)


def _output(controller: int) -> str:
    os.set_blocking(controller, False)
    pieces = []
    with suppress(BlockingIOError):
        while True:
            pieces.append(os.read(controller, 65_536))
    return b"".join(pieces).decode()


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal(monkeypatch) as controller:
        with open_progress() as progress:
            progress.start(100)
            progress.add_existing(25)
            progress.add_drawn(50)
        printed = _output(controller)
    assert "75/100" in printed
    assert " images/s" in printed
    assert "{" not in printed
