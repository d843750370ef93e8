"""Builds and `gc` killed at any moment: the store stays whole and readable, and the next run gives the same result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from support.crafted_objects import in_child
from support.soak import SOAK, machine

pytestmark = machine("kills")

KILLS = 520 if SOAK else 16
KINDS = {"read", "scandir", "mkdir", "create", "half", "fsync", "rename", "remove"}
"""Operations on files; `half`: the file is half written."""
FOLDERS = {"rows", "objects", "actions", "datasets", "versions", "tokenizers", "scratch"}


def test_a_store_survives_kills(tmp_path: Path) -> None:
    found = [line.split(": ", 2) for line in in_child("killed_builds", tmp_path, 3, KILLS, seconds=12 * KILLS)]
    assert [line for line in found if line[2] != "intact"] == []
    kills = [(scenario, at) for scenario, at, _ in found if at != "finished"]
    operations = [at.split() for _, at in kills if not at.startswith("at a random moment")]
    stages, kinds, folders = (Counter(operation[place] for operation in operations) for place in (1, 2, 3))
    print(f"{len(kills)} kills, {len(kills) - len(operations)} of them at random moments; by scenario:")
    print(*(dict(counts) for counts in (Counter(scenario for scenario, _ in kills), stages, kinds, folders)), sep="\n")
    assert len(kills) >= KILLS
    if SOAK:  # few enough kills can all miss: a kill at a random moment finds some processes finished
        assert len(operations) < len(kills)
        assert kinds.keys() >= KINDS
        assert folders.keys() >= FOLDERS
