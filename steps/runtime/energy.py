"""The energy of a GPU, by the counter of its driver, which NVIDIA's GPUs have since Volta.

The library comes with the driver: nothing is installed for it.
"""

import ctypes
from contextlib import suppress

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0


class EnergyCounter:
    """The counter of one GPU. Where it cannot be read, it has no value."""

    def __init__(self, uuid: str | None) -> None:
        """Open the counter of the GPU with this UUID, such as `GPU-5d0c...`."""
        self._library: ctypes.CDLL | None = None
        self._handle = ctypes.c_void_p()
        if uuid is not None:
            with suppress(OSError, AttributeError):
                self._open(uuid)

    def read_joules(self) -> float | None:
        """The energy since the driver was loaded; None where it is not counted.

        A slice of a GPU has no counter of its own.
        """
        if self._library is None:
            return None
        millijoules = ctypes.c_ulonglong()
        status = self._library.nvmlDeviceGetTotalEnergyConsumption(
            self._handle, ctypes.byref(millijoules)
        )
        return millijoules.value / 1000 if status == SUCCESS else None

    def _open(self, uuid: str) -> None:
        library = ctypes.CDLL(LIBRARY)
        if library.nvmlInit_v2() != SUCCESS:
            return
        name = uuid.encode()
        status = library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle))
        if status == SUCCESS:
            self._library = library


def joules_between(before: float | None, after: float | None) -> float | None:
    """The energy between two readings; None where one is missing."""
    if before is None or after is None:
        return None
    return max(0.0, after - before)
