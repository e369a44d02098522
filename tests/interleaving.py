"""Processes whose every access to a local store is a step: run in any order, killed or left asleep.

Each process is a thread that runs only while it is stepped, so that the same steps give the same
history. An access may fail, with or without effect. A killed process touches no store any more,
whatever it still does to clean up.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import pytest

from imagekiln.steps.errors import KilnError
from imagekiln.steps.generate import attempt
from imagekiln.steps.storage.local import LocalStore

T = TypeVar("T")
OPERATIONS = (
    "read", "open", "exists", "create", "replace", "remove", "list_folder", "remove_folder",
)  # fmt: skip
WRITES = ("create", "replace", "remove")
_running = threading.local()


class Killed(BaseException):
    """The process ends here. As a BaseException, it passes every `except Exception`."""


class Process:
    """Work that stops before each access to a store until it is stepped."""

    def __init__(self, name: str, work: Callable[[], object], number: int = 1) -> None:
        """Begin the work, up to its first access. `number` tells it from others."""
        self.name = name
        self.number = number
        self.error: BaseException | None = None
        self.is_done = False
        self.next_access = ("", "")  # the operation, and the name of the object
        self._work = work
        self._is_killed = False
        self._fault: tuple[KilnError, bool] | None = None
        self._accesses_left = 0.0
        self._resumed = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._paused.acquire()

    def step(self, accesses: int = 1) -> None:
        """Make so many accesses, or fewer where the work ends before."""
        self._run_for(accesses)

    def step_to_write(self, writes: int) -> None:
        """Go on until just before so many writes on."""
        for _ in range(writes):
            self.step()
            while not self.is_done and self.next_access[0] not in WRITES:
                self.step()

    def finish(self) -> None:
        """Run to the end."""
        self._run_for(math.inf)

    def _run_for(self, accesses: float) -> None:
        if self.is_done:
            return
        self._accesses_left = accesses - 1
        self._resumed.release()
        self._paused.acquire()

    def kill(self, torn: bool = False) -> None:
        """End the process before its next access; `torn`: in the middle of it, if it writes."""
        if self.is_done:
            return
        operation, name = self.next_access
        if torn and operation in WRITES[:2]:
            _leave_temporary_file(Path(name))
        self._is_killed = True
        self._resumed.release()
        self._thread.join()

    def fail(self, fault: KilnError, *, acted: bool) -> None:
        """Have the next access raise `fault`, before the store acts or after, and go on from it."""
        self._fault = fault, acted
        self.step()

    def pause(self, operation: str, name: str) -> None:
        """Wait to be stepped, in the thread of the process."""
        self.next_access = (operation, name)
        if not self._is_killed:
            self._wait()
        if self._is_killed:
            raise Killed

    @contextmanager
    def storage_fault(self) -> Iterator[None]:
        """Raise what goes wrong with the access that is made in this block, if anything does."""
        fault, acted = self._fault or (None, False)
        if fault is None:
            yield
            return
        self._fault = None
        if acted:
            yield
        raise fault

    def _wait(self) -> None:
        if self._accesses_left > 0:
            self._accesses_left -= 1
            return
        self._paused.release()
        self._resumed.acquire()

    def _run(self) -> None:
        _running.process = self
        try:
            self._work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # judged by who stepped it
            self.error = error
        self.is_done = True
        self._paused.release()


def process_number() -> int:
    """The number of the process that runs; 0 where none does."""
    process: Process | None = getattr(_running, "process", None)
    return 0 if process is None else process.number


def frozen(work: Callable[[], object], operation: str, key: str) -> Process:
    """A process that is frozen before its first access of this kind."""
    process = Process("frozen", work)
    while process.next_access[0] != operation or not process.next_access[1].endswith(key):
        assert not process.is_done, process.error
        process.step()
    return process


def _leave_temporary_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / ".writing-torn____").write_bytes(b"half of it")


@contextmanager
def interleaving(root: Path, note: Callable[[str, str], None]) -> Iterator[None]:
    """Have processes pause before each access to stores below `root`; nobody uses other threads.

    `note` is called with each operation that writes, and the path of its object, once it is done.
    """
    with pytest.MonkeyPatch.context() as patch:
        for operation in OPERATIONS:
            original = getattr(LocalStore, operation)
            patch.setattr(LocalStore, operation, _pausing(original, operation, str(root), note))
        patch.setattr(ThreadPoolExecutor, "submit", _submit_at_once)
        patch.setattr(attempt, "consume_in_thread", _consume_at_once)
        patch.setattr(attempt, "prefetch", _fetch_at_once)
        patch.setattr(os, "fsync", lambda _: None)  # nobody cuts the power
        yield


def _pausing(
    original: Callable[..., T], operation: str, root: str, note: Callable[[str, str], None]
) -> Callable[..., T]:
    @wraps(original)
    def call(store: LocalStore, *arguments: Any) -> T:  # noqa: ANN401  # those of any operation
        process: Process | None = getattr(_running, "process", None)
        name = store.uri_of(arguments[0])
        if not name.startswith(root):
            return original(store, *arguments)
        if process is not None:
            process.pause(operation, name)
        with nullcontext() if process is None else process.storage_fault():
            result = original(store, *arguments)
            if operation in WRITES and result is not False:
                note(operation, name)
            return result

    return call


def _submit_at_once(
    _: ThreadPoolExecutor,
    work: Callable[..., T],
    *arguments: Any,  # noqa: ANN401  # those of any work
    **named: Any,  # noqa: ANN401
) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(work(*arguments, **named))
    except BaseException as error:  # noqa: BLE001  # raised to who asks for the result
        future.set_exception(error)
    return future


def _consume_at_once(
    items: Iterator[T], consume: Callable[[Iterator[T]], None], *_: object
) -> None:
    consume(items)


def _fetch_at_once(items: Iterator[T], *_: object) -> Iterator[T]:
    yield from items
