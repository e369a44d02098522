"""A network that loses answers: a proxy on loopback that ends connections when an answer comes."""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PIECE = 65536


@dataclass(slots=True)
class Flaky:
    """Where the proxy listens, and how many answers it has lost."""

    endpoint: str
    lost: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def flaky(endpoint: str, share: float, dice: random.Random) -> Iterator[Flaky]:
    """A proxy for an HTTP endpoint that loses this share of the pieces of its answers, while the block runs."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = Flaky(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread = threading.Thread(target=_serve, args=(server, (host, int(port)), proxy, share, dice), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(server: socket.socket, target: tuple[str, int], proxy: Flaky, share: float, dice: random.Random) -> None:
    with suppress(OSError):  # the server was shut down
        while True:
            client, _ = server.accept()
            upstream = socket.create_connection(target)
            for work in ((_forward, client, upstream), (_answer, upstream, client, proxy, share, dice)):
                threading.Thread(target=work[0], args=work[1:], daemon=True).start()


def _forward(client: socket.socket, upstream: socket.socket) -> None:
    with suppress(OSError), client, upstream:
        while piece := client.recv(PIECE):
            upstream.sendall(piece)
        upstream.shutdown(socket.SHUT_WR)


def _answer(upstream: socket.socket, client: socket.socket, proxy: Flaky, share: float, dice: random.Random) -> None:
    with suppress(OSError):
        while piece := upstream.recv(PIECE):
            if piece.startswith(b"HTTP/1.1 100"):
                client.sendall(piece)
                continue
            with proxy.lock:
                lose, half = dice.random() < share, dice.random() < 0.5
                proxy.lost += lose
            if lose:
                client.sendall(piece[: len(piece) // 2] if half else b"")
                break
            client.sendall(piece)
    for each in (client, upstream):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
