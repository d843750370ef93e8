"""docs/prepare/styles.md shows each style as `tokenloom inspect --style` renders it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.paths import ROOT
from support.terminal import run_here
from tokenloom.starter.starter_yaml import STYLES

ROWS = [
    {"instruction": "Name a river.", "output": "The Elbe."},
    {"instruction": "Name a bay.", "output": "Hudson Bay."},
]


@pytest.mark.parametrize("style", STYLES)
def test_a_style_is_shown_as_inspect_renders_it(tmp_path: Path, style: str) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    done = run_here("inspect", "rows.jsonl", "--style", style, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    panel = [line[2:-1].rstrip() for line in done.stdout.splitlines() if line.startswith("\u2502")]
    page = (ROOT / "docs" / "prepare" / "styles.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {style}\n.*?```\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    assert "\n".join(panel).strip() == found[1].strip()
