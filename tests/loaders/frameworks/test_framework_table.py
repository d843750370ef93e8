"""Every framework with every loader: each row of an epoch is read once over all ranks, or a sentence says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.framework_reads import FRAMEWORKS, LOADERS
from support.framework_table import ONCE, PAGE, Reading, is_sentence, line, read_cells
from support.soak import machine, sweep

pytestmark = machine("ranks")

COVER = [(framework, LOADERS[number % len(LOADERS)]) for number, framework in enumerate(FRAMEWORKS)]
"""A cell of each framework, which together hold each loader."""


@pytest.mark.parametrize(("framework", "loader"), COVER)
def test_a_framework_reads_a_loader(framework: str, loader: str, tmp_path: Path) -> None:
    verdicts = Reading(tmp_path / "read", framework, [loader]).verdicts(loader)
    assert all(verdict == ONCE or is_sentence(verdict) for verdict in verdicts.values()), verdicts


@sweep
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_page_says_what_a_framework_reads_from_all_loaders(framework: str) -> None:
    cells = read_cells(framework)
    assert "✗" not in "".join(cells)
    assert line(framework, cells) in PAGE.read_text(encoding="utf-8").splitlines()
