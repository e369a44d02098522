"""Answers of the hub that would never end: imported only where something is asked of it.

A gateway that sends a byte now and then never falls silent, and one that has the same page for each
part of a listing leads from it to itself.
"""

import time
from collections.abc import Iterator

from httpx2 import Response, SyncByteStream

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.storage.web_client import LOWEST_BYTES_PER_SECOND, SlowServer

PACE_SECONDS = 120.0  # of waiting, between two looks at how much has come


class PacedStream(SyncByteStream):
    """A stream that fails with SlowServer where less comes than through a modem."""

    def __init__(self, stream: SyncByteStream) -> None:
        """Watch what is read of `stream`."""
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        """The pieces of the stream."""
        pieces = iter(self._stream)
        waited, came = 0.0, 0
        while True:
            started = time.monotonic()
            piece = next(pieces, None)
            waited += time.monotonic() - started
            if piece is None:
                return
            came += len(piece)
            if waited > PACE_SECONDS:
                if came < LOWEST_BYTES_PER_SECOND * waited:
                    raise SlowServer
                waited, came = 0.0, 0
            yield piece

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


def require_end(response: Response) -> None:
    """Watch how fast an answer comes. Raises TryAgain where it is followed by itself."""
    if isinstance(response.stream, SyncByteStream):
        response.stream = PacedStream(response.stream)
    following = response.links.get("next", {}).get("url")
    if following == str(response.request.url):
        raise TryAgain(
            f"{response.url.host}: the hub gives the same part of a list again and again. Run "
            "again, or without the proxy in between."
        )
