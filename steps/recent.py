"""Answers that neighbours ask for too: the last few are kept, and each is worked out once, whoever asks first."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """A slow function whose last `most` answers are at hand. For any number of threads."""

    def __init__(self, work: Callable[[K], V], most: int) -> None:
        """Begin with none."""
        self._work, self._most = work, most
        self._held: dict[K, Future[V]] = {}
        self._lock = Lock()

    def __call__(self, key: K) -> V:
        """What `work` gives for `key`. Raises what it raises, to all who asked."""
        with self._lock:
            answer = self._held.get(key)
            if waits := answer is not None:
                self._held[key] = self._held.pop(key)
            else:
                answer = self._held[key] = Future()
                for oldest in list(self._held)[: -self._most]:
                    del self._held[oldest]
        if not waits:
            try:
                answer.set_result(self._work(key))
            except BaseException as error:  # noqa: BLE001  # it comes out below, here and for whoever waits
                answer.set_exception(error)
        return answer.result()
