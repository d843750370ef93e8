"""A local HTTP proxy that injects faults: errors, cut connections, slow responses."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

PASSING = ("500", "503", "late 500", "drop", "cut request", "lost answer", "cut answer", "slow")
"""Faults that retries overcome.

- `500`, `503`: an error response, without asking the service.
- `late 500`: an error response, after the service has done the request.
- `drop`: the connection is closed at once.
- `cut request`: the connection is closed after the service got half of the request's body.
- `lost answer`, `cut answer`: the connection is closed before or in the middle of the response.
- `slow`: the response is sent in pieces.
"""

CODES = {
    "500": (500, "InternalError"),
    "late 500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "403": (403, "InvalidAccessKeyId"),
    "501": (501, "NotImplemented"),
}
SLOW_SECONDS = 0.002

IN_A_ROW = 3
"""Maximum number of faults in a row for the same request."""


class FaultProxy:
    """Forwards requests to a server until the `with` block ends.

    Args:
        host, port: of that server.
        listen: port of the proxy. Default: a free one.

    Attributes:
        kinds, fraction, method: which faults are injected, into what fraction of the requests, of which method.
        in_a_row: maximum number of faults in a row for the same request.
        delay: seconds before each request is forwarded. Requests of several connections wait at the same time.
        most_at_once: largest number of requests that were waiting for a response at the same time.
        injected: number of injected faults of each kind.
        requests: all requests, such as `HEAD /bucket/key`.
        sent: bytes of the responses' bodies, by request.
    """

    def __init__(self, host: str, port: int, listen: int = 0):
        self.upstream = (host, port)
        self.kinds: Sequence[str] = ()
        self.fraction, self.in_a_row = 0.0, IN_A_ROW
        self.delay, self.method = 0.0, ""
        self.most_at_once = self._waiting = 0
        self.injected: Counter[str] = Counter()
        self.requests: list[str] = []
        self.sent: Counter[str] = Counter()
        self._random, self.lock = random.Random(0), Lock()
        self._faults: Counter[str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", listen), _Handler)
        self._server.daemon_threads = True
        self._server.proxy = self  # pyright: ignore[reportAttributeAccessIssue]
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FaultProxy:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def plan(
        self,
        seed: int = 0,
        fraction: float = 0.0,
        kinds: Sequence[str] = PASSING,
        in_a_row: int = IN_A_ROW,
        method: str = "",
    ) -> None:
        """Reset all counts, and inject these faults from now on, into requests of one method if it is given; none by
        default."""
        with self.lock:
            self.method = method
            self.kinds, self.fraction, self.in_a_row = kinds, fraction, in_a_row
            self._random = random.Random(seed)
            self.most_at_once = 0
            for counted in (self.injected, self._faults, self.requests, self.sent):
                counted.clear()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request as waiting while the context lasts."""
        with self.lock:
            self._waiting += 1
            self.most_at_once = max(self.most_at_once, self._waiting)
        try:
            yield
        finally:
            with self.lock:
                self._waiting -= 1

    def fault(self, request: str) -> str | None:
        """Record a request, and return the fault to inject, or None."""
        with self.lock:
            self.requests.append(request)
            passes = self._faults[request] >= self.in_a_row or self._random.random() >= self.fraction
            if passes or not request.startswith(self.method):
                self._faults[request] = 0
                return None
            self._faults[request] += 1
            kind = self._random.choice(self.kinds)
            self.injected[kind] += 1
            return kind


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        proxy: FaultProxy = self.server.proxy  # pyright: ignore[reportAttributeAccessIssue]
        with proxy.counted():
            self._respond(proxy)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _respond(self, proxy: FaultProxy) -> None:
        assert "Transfer-Encoding" not in self.headers
        size = int(self.headers.get("Content-Length", 0))
        fault = proxy.fault(f"{self.command} {self.path}")
        time.sleep(proxy.delay)
        if fault == "drop":
            self._cut()
            return
        host, port = proxy.upstream
        upstream = HTTPConnection(host, port)
        if fault == "cut request":
            self._ask(upstream, self.rfile.read(size // 2))
            upstream.close()
            self._cut()
            return
        body = self.rfile.read(size)
        if fault in CODES and fault != "late 500":
            self._send(*self._error(fault))
            return
        self._ask(upstream, body)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if fault == "lost answer":
            self._cut()
            return
        if fault == "late 500":
            self._send(*self._error(fault))
            return
        with proxy.lock:
            proxy.sent[f"{self.command} {self.path}"] += len(content)
        hop = ("connection", "transfer-encoding", "keep-alive")
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in hop]
        if not any(name.lower() == "content-length" for name, _ in headers):
            headers.append(("Content-Length", str(len(content))))
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{name}: {value}" for name, value in headers)]
        self._send("\r\n".join([*lines, "", ""]).encode("latin-1"), content, fault)

    def _ask(self, upstream: HTTPConnection, body: bytes) -> None:
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                upstream.putheader(name, value)
        upstream.endheaders(body)

    def _error(self, fault: str) -> tuple[bytes, bytes]:
        status, code = CODES[fault]
        content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        content = b"" if self.command == "HEAD" else content
        head = f"HTTP/1.1 {status} Injected\r\nContent-Type: application/xml\r\nContent-Length: {len(content)}\r\n\r\n"
        return head.encode(), content

    def _send(self, head: bytes, content: bytes, fault: str | None = None) -> None:
        if fault == "cut answer":
            self.wfile.write(head + content[: len(content) // 2] if content else head[: len(head) // 2])
            self._cut()
        elif fault == "slow":
            sent = head + content
            step = len(sent) // 8 + 1
            for start in range(0, len(sent), step):
                self.wfile.write(sent[start : start + step])
                self.wfile.flush()
                time.sleep(SLOW_SECONDS)
        else:
            self.wfile.write(head + content)

    def _cut(self) -> None:
        self.wfile.flush()
        self.close_connection = True
