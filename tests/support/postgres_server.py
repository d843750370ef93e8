"""A PostgreSQL server for a test, with an empty database."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.free_port import free_port
from support.processes import finish, run, started
from support.waiting import until

USER = "dagster"
_DEBIAN = Path("/usr/lib/postgresql")


def postgres_programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`, from PATH or Debian's newest version; None if there is none."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    return max(_DEBIAN.glob("*/bin"), key=lambda folder: int(folder.parent.name), default=None)


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server with an empty database on a free port, and yield its URL.

    PostgreSQL refuses to run as root: then it runs as the user `nobody`.
    """
    programs = postgres_programs()
    assert programs is not None
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:  # unlike pytest's, a folder that another user can enter
        os.chown(folder, account.get("user", -1), -1)
        data = Path(folder) / "data"
        initdb = [programs / "initdb", "-D", data, "-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8"]
        run(initdb, **account, cwd=folder, check=True)
        settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        log, command = Path(folder) / "postgres.log", [programs / "postgres", "-D", data, *options]
        with started(command, **account, cwd=folder, log=log) as server:
            ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", port]
            until(lambda: server.poll() is not None or run(ready).returncode == 0)
            assert server.poll() is None, log.read_text()
            try:
                yield f"postgresql+psycopg2://{USER}@127.0.0.1:{port}/postgres"
            finally:
                server.send_signal(signal.SIGINT)  # disconnects clients
                finish(server)
