"""The scripts of examples/, as modules."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from support.paths import EXAMPLES


def example(name: str) -> ModuleType:
    """A script of examples/."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
