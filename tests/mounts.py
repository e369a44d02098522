"""A disk of any size, for errors that only a real file system raises."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kibibytes: int, files: int = 0) -> Iterator[Path]:
    """An in-memory file system mounted on `folder`, which may hold so many files; 0 for any number.

    Skips the test if mounting is impossible.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small disk")
    folder.mkdir()
    options = f"size={kibibytes}k,nr_inodes={files}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine lets nobody mount a small disk ({done.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """Remount a disk read-only."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def fill(folder: Path, kibibytes_left: int) -> Path:
    """Fill a disk with one file except for `kibibytes_left`, and return the file."""
    free = os.statvfs(folder)
    size = free.f_bavail * free.f_frsize - kibibytes_left * 1024
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(size))
    return ballast
