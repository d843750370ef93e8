"""A free port of this machine, for a server that a test starts."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that no server listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
