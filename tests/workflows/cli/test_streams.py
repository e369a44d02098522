"""Standard streams that are closed, full or no longer read: exit codes, and no work is lost."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.workflows.cli.streams import NoteFile, OutputLost, ResultFile

FULL = Path("/dev/full")
COMMAND = [sys.executable, "-m", "imagekiln"]
needs_full_device = pytest.mark.skipif(not FULL.exists(), reason="/dev/full is a device of Linux")
OPEN_A_FILE = """
import os, sys
from imagekiln.workflows.cli.streams import secure_streams
secure_streams()
with open(sys.argv[1], "w") as file:
    os.write(2, b"a message of a library")
    print("a result")
    print("a note", file=sys.stderr)
    file.write(f"{sys.stderr.isatty()}")
"""


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_a_result_that_cannot_be_written_is_reported_once(unread: int) -> None:
    file = ResultFile(unread)
    with pytest.raises(OutputLost) as lost:
        file.write(b"{}")
    assert lost.value.is_unread
    assert file.write(b"{}") == 2  # as when the process ends, whose exit code it would change


def test_a_note_that_cannot_be_written_ends_no_work(unread: int) -> None:
    assert NoteFile(unread).write(b"12 of 64 images") == 15


def test_nothing_is_written_into_a_file_that_was_opened_in_the_place_of_a_stream(
    tmp_path: Path,
) -> None:
    path = tmp_path / "part"
    command = [sys.executable, "-c", OPEN_A_FILE, str(path)]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=False)
    assert (done.returncode, path.read_text()) == (0, "False")


def test_lines_are_there_at_once_and_in_the_encoding_that_the_environment_asks_for() -> None:
    # The images set PYTHONUNBUFFERED: a log that comes when the pod has ended helps nobody.
    print_and_die = (
        "import os; from imagekiln.workflows.cli.streams import secure_streams; secure_streams(); "
        "print('un événement ✓'); os._exit(0)"
    )
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-c", print_and_die]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    assert done.stdout == "un événement \\u2713\n".encode("latin-1")


@needs_full_device
def test_result_on_a_full_disk_exits_75_with_a_sentence() -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [*COMMAND, "schema"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 75
    assert done.stderr == (
        "standard output: cannot be written (No space left on device). Run the command again.\n"
    )


def test_result_that_nobody_reads_exits_75_without_a_word(unread: int) -> None:
    done = subprocess.run(
        [*COMMAND, "schema"], stdout=unread, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (75, "")


@needs_full_device
def test_mistake_exits_2_although_it_cannot_be_reported() -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*COMMAND, "run", "absent.yaml"], stderr=full, check=False)
    assert done.returncode == 2
