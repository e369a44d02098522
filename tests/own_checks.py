"""Checks as users write them, good and bad."""

import threading
import time

import numpy as np
import numpy.typing as npt
import torch

from imagekiln.steps.checks import ImageSpec, Verdict

NOT_CALLABLE = 3
inside = threading.Semaphore()


def even(_image: npt.NDArray[np.uint8], row: ImageSpec) -> Verdict:
    """Refuse images whose seed is odd."""
    return Verdict(row.seed % 2 == 0, f"seed {row.seed} is odd")


def dark(image: npt.NDArray[np.uint8], _row: ImageSpec) -> bool:
    """Refuse what is bright, by numpy's own truth."""
    return image.mean() < 100  # type: ignore[no-any-return]  # numpy's bool: what users forget


def silent(_image: object, _row: object) -> None:
    """Say nothing."""


def raises(_image: object, row: ImageSpec) -> Verdict:
    """Fail, and say so in what Parquet does not take."""
    raise ValueError(f"no verdict on {row.prompt} \ud800")


def number(_image: object, _row: object) -> float:
    """Return what is no verdict."""
    return 0.5


def changes(image: npt.NDArray[np.uint8], _row: object) -> None:
    """Try to change the image."""
    image[:] = 0


def full(_image: object, _row: object) -> None:
    """Find no memory."""
    raise MemoryError("no room")


def refuses(_image: object, _row: object) -> None:
    """Fail as a user's own code may, not the device."""
    raise RuntimeError("no such category")


def crashes(_image: object, _row: object) -> None:
    """Find that the device failed."""
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def alone(_image: object, _row: object) -> bool:
    """Accept only where no other thread is here."""
    if not inside.acquire(blocking=False):
        return False
    time.sleep(0.005)
    inside.release()
    return True
