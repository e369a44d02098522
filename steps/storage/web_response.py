"""An answer of a web server that has to keep coming: imported only where something is read of one.

A server that sends a byte a second never falls silent, and would hold a step for as long as a
whole table may take.
"""

import asyncio
from typing import TYPE_CHECKING, Self

import aiohttp

from imagekiln.steps.storage.web_client import LOWEST_BYTES_PER_SECOND, SlowServer

if TYPE_CHECKING:
    from aiohttp.connector import Connection

PACE_SECONDS = 30.0  # between two looks at how much has come


class PacedResponse(aiohttp.ClientResponse):
    """Fails with SlowServer where its server sends less than a modem would."""

    async def start(self, connection: "Connection") -> Self:
        """Read the headers, and begin to watch what follows them."""
        # Longer than a silent server has, which has a message of its own.
        limit = asyncio.timeout(2 * PACE_SECONDS)
        try:
            async with limit:
                await super().start(connection)
        except TimeoutError as error:
            if limit.expired():
                raise SlowServer from error
            raise
        self._look_later()
        return self

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(
            PACE_SECONDS, self._look, self.content.total_bytes, self._is_awaited()
        )

    def _look(self, bytes_before: int, was_awaited: bool) -> None:
        """Give up where too little has come since, all the while somebody waited for more."""
        if self.closed or self.content.is_eof():
            return
        came = self.content.total_bytes - bytes_before
        is_slow = came < LOWEST_BYTES_PER_SECOND * PACE_SECONDS
        if is_slow and was_awaited and self._is_awaited():
            self.content.set_exception(SlowServer())
            self.close()
            return
        self._look_later()

    def _is_awaited(self) -> bool:
        """Whether the connection is being read, which it is not while its reader is behind."""
        transport = None if self.connection is None else self.connection.transport
        return isinstance(transport, asyncio.Transport) and transport.is_reading()
