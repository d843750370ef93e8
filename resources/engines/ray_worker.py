"""What runs in the worker processes of a Ray cluster: a function that is loaded once and called for many items."""

from __future__ import annotations

import os
import pickle
import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from typing import Any, Literal, NamedTuple

from tokenloom.errors import StoreError
from tokenloom.resources.engines.engine import RELEASE_EVERY, keep_memory_low, release_memory
from tokenloom.resources.engines.worker_processes import portable

LIBRARIES = (
    *("tokenloom", "pyarrow", "numpy", "blake3", "pydantic", "awkward", "charset-normalizer", "gigatoken", "jinja2"),
    *("msgspec", "pandera", "rapidfuzz", "tokenizers", "transformers"),
)
"""Distributions that can change what a chunk's output is, or how tasks are pickled."""


class Reply(NamedTuple):
    """What a task returns.

    Args:
        kind: whether `value` is the result, the error that the function raised, or why the process cannot run it.
        host: name of the machine.
        mark: a blob that the process wrote into the store when it loaded the function, or "".
    """

    kind: Literal["done", "failed", "unfit"]
    value: Any
    host: str
    mark: str = ""


_loaded: dict[str, Callable[[Any], Any]] = {}
_count = 0


@cache
def versions() -> dict[str, str]:
    """Return the versions that all machines must have in common."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = "none"
    return installed


def run(expected: Mapping[str, str], key: str, shared: Callable[[], bytes], item: bytes) -> Reply:
    """Return what the function returns for one item.

    Args:
        expected: `versions` of the process that pickled the function.
        key: identifies the function; it is loaded once per process.
        shared: returns the pickled function, and the store that it uses or None.
        item: pickled.
    """
    global _count
    host, mark = platform.node(), ""
    if key not in _loaded:
        for name, version in expected.items():
            if (own := versions().get(name)) != version:
                return Reply("unfit", f"it has {name} {own}, but the process that builds has {version}", host)
        keep_memory_low()
        os.environ.setdefault("RAYON_NUM_THREADS", "1")  # of the tokenizer libraries: a task has one CPU
        function, store = pickle.loads(shared())
        if store is not None:
            try:
                mark = store.leave_mark()
            except StoreError as error:
                return Reply("failed", error, host) if error.is_outage else Reply("unfit", str(error), host)
        _loaded.clear()
        _loaded[key] = function
    _count += 1
    if not _count % RELEASE_EVERY:
        release_memory()
    try:
        return Reply("done", _loaded[key](pickle.loads(item)), host, mark)
    except Exception as error:
        return Reply("failed", portable(error), host, mark)
