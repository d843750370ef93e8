"""Reads the files that users name whole, within a limit: a device or a pipe could have no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_small_file(path: Path, largest: int) -> bytes:
    """Return the content of a regular file.

    Args:
        largest: limit in bytes.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger; `strerror` says which.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:  # noqa: PTH123  # a pipe without a writer must not block
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(largest + 1) if found.st_size <= largest else b""
    if max(found.st_size, len(content)) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest >> 20} MiB", str(path))
    return content


def read_small_text(path: Path, largest: int) -> str:
    r"""Return the text of a regular file, with `\n` for every line end, as Python reads text files.

    Raises:
        OSError: as for `read_small_file`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_small_file(path, largest).decode().replace("\r\n", "\n").replace("\r", "\n")
