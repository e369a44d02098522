"""HTTP servers of tests, on loopback."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import HTTPServer
from socketserver import StreamRequestHandler


@contextmanager
def silent_server() -> Iterator[str]:
    """The URL of a server that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def running(server: HTTPServer) -> Iterator[str]:
    """The URL of a server that answers while the block runs, and is closed at its end."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def dripping_server(start: bytes, seconds: float) -> Iterator[str]:
    """The URL of a server that begins to answer at once, and then sends a space now and then."""

    class Dripping(StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(2**16)
            with suppress(OSError):  # the client has seen enough
                self.wfile.write(b"HTTP/1.1 200 OK\r\n" + start)
                for _ in range(round(seconds / 0.05)):
                    self.wfile.write(b" ")
                    time.sleep(0.05)

    with running(HTTPServer(("127.0.0.1", 0), Dripping)) as url:
        yield url
