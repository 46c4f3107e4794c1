"""An HTTP server for tests that sends any bytes at any pace, and records what clients sent to it."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

#: Writes the answer to one request onto its connection.
Answer = Callable[[socket.socket], None]


class HostileServer:
    """Listens on the loopback; each connection gets `answer`, and `requests` holds what was received."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[bytes] = []
        self._answer = answer
        self._open = True
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end answers that are still being written."""
        self._open = False
        self._socket.close()

    @property
    def is_open(self) -> bool:
        """Whether the server has not been closed."""
        return self._open

    def _accept(self) -> None:
        while self._open:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(10.0)
            received = b""
            while not _is_whole(received) and (part := connection.recv(65_536)):
                received += part
            self.requests.append(received)
            self._answer(connection)


def _is_whole(received: bytes) -> bool:
    """Return whether a request has its headers and the body that they announce."""
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return b"\r\n\r\n" in received and len(body) >= (int(length[1]) if length else 0)


def reply(body: bytes, status: str = "200 OK", headers: Iterable[str] = ()) -> bytes:
    """Return a whole reply with its length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def sends(*parts: bytes, pause_s: float = 0.0, forever: bool = False) -> Answer:
    """Return an answer of these parts with pauses between them; `forever` repeats the last part."""

    def answer(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause_s)
        ends_s = time.monotonic() + 30.0
        while forever and time.monotonic() < ends_s:
            connection.sendall(parts[-1])
            time.sleep(pause_s)

    return answer


def silent(connection: socket.socket) -> None:
    """Answer nothing, and keep the connection open until the client closes it."""
    connection.recv(1)


@contextmanager
def hostile(answer: Answer) -> Iterator[HostileServer]:
    """Run a server for the duration of a block."""
    server = HostileServer(answer)
    try:
        yield server
    finally:
        server.close()
