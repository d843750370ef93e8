"""A local HTTP server that gives one answer to all requests: headers left out, endless bodies, anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

PIECE = b"x" * (64 << 10)


@dataclass(frozen=True)
class Answer:
    """An answer.

    Args:
        status, headers: what it states. Without `Content-Length`, the connection is closed after the body.
        body: its bytes; a number stands for so many bytes.
    """

    status: int = 200
    headers: Mapping[str, str | int] = field(default_factory=dict)
    body: bytes | int = b""

    def pieces(self) -> Iterable[bytes]:
        """Yield the body."""
        return [self.body] if isinstance(self.body, bytes) else (PIECE for _ in range(self.body // len(PIECE)))


@dataclass
class OddServer:
    """The server.

    Attributes:
        answer: what it gives.
        sent: bytes of bodies that it could send so far.
        requests: number of requests so far.
    """

    url: str
    answer: Answer = field(default_factory=Answer)
    sent: int = 0
    requests: int = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        odd: OddServer = self.server.odd  # pyright: ignore[reportAttributeAccessIssue]
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        odd.requests += 1
        lines = [
            f"HTTP/1.1 {odd.answer.status} Odd",
            *(f"{name}: {value}" for name, value in odd.answer.headers.items()),
        ]
        self.close_connection = "Content-Length" not in odd.answer.headers
        with suppress(OSError):
            self.wfile.write("\r\n".join([*lines, "", ""]).encode())
            for piece in odd.answer.pieces() if self.command != "HEAD" else ():
                self.wfile.write(piece)
                odd.sent += len(piece)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET


@contextmanager
def odd_server() -> Iterator[OddServer]:
    """Run the server until the `with` block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    odd = OddServer(f"http://127.0.0.1:{server.server_port}")
    server.odd = odd  # pyright: ignore[reportAttributeAccessIssue]
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield odd
    finally:
        server.shutdown()
        server.server_close()
