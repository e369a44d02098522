"""Unreliable networks: endpoints that never answer, and a proxy that loses answers."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

PIECE = 65536


def dead_port(kind: str, resources: ExitStack) -> int:
    """A port that refuses connections, never accepts them, or never answers a request."""
    server = resources.enter_context(socket.socket())
    server.bind(("127.0.0.1", 0))
    if kind == "refuses":
        return int(server.getsockname()[1])
    server.listen(0 if kind == "swallows" else 100)
    # A full queue makes the next connection wait forever.
    for _ in range(3 if kind == "swallows" else 0):
        client = resources.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(server.getsockname())
    return int(server.getsockname()[1])


@dataclass(slots=True)
class Flaky:
    """Where the proxy listens, and how many answers it has lost."""

    endpoint: str
    loses: Callable[[bytes], bool]
    lost: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def flaky(endpoint: str, loses: Callable[[bytes], bool]) -> Iterator[Flaky]:
    """A proxy for an HTTP endpoint that loses the pieces of answers for which `loses` is true."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = Flaky(f"http://127.0.0.1:{server.getsockname()[1]}", loses)
        thread = threading.Thread(
            target=_serve, args=(server, (host, int(port)), proxy), daemon=True
        )
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(server: socket.socket, target: tuple[str, int], proxy: Flaky) -> None:
    with suppress(OSError):  # the server was shut down
        while True:
            client, _ = server.accept()
            upstream = socket.create_connection(target)
            threading.Thread(target=_forward, args=(client, upstream), daemon=True).start()
            threading.Thread(target=_answer, args=(upstream, client, proxy), daemon=True).start()


def _forward(client: socket.socket, upstream: socket.socket) -> None:
    with suppress(OSError), client, upstream:
        while piece := client.recv(PIECE):
            upstream.sendall(piece)
        upstream.shutdown(socket.SHUT_WR)


def _answer(upstream: socket.socket, client: socket.socket, proxy: Flaky) -> None:
    with suppress(OSError):
        while piece := upstream.recv(PIECE):
            with proxy.lock:
                lost = not piece.startswith(b"HTTP/1.1 100") and proxy.loses(piece)
                proxy.lost += lost
            if lost:
                length = len(piece) // 2 * (proxy.lost % 2)  # half of it, or nothing
                client.sendall(piece[:length])
                break
            client.sendall(piece)
    for connection in (client, upstream):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
