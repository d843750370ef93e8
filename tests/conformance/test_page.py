"""docs/prepare/conformance.md shows how rows of every dataset type are read today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.paths import ROOT
from support.soak import sweep


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance_page", ROOT / "docs" / "generate" / "conformance.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_examples_are_up_to_date(generator: ModuleType) -> None:
    examples, rest = generator.PAGE.read_text(encoding="utf-8").split(generator.TRL_TITLE)
    assert f"{examples}{generator.TRL_TITLE}" == generator.examples(), "run `make docs`"
    assert rest


@sweep
def test_the_comparison_with_trl_is_up_to_date(generator: ModuleType, real_data: Path) -> None:
    pytest.importorskip("trl")
    assert generator.PAGE.read_text(encoding="utf-8").endswith(generator.comparison(real_data)), "run `make docs`"
