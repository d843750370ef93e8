"""A build that reads a stored output with the right digest and wrong content computes it again, or its error says what
is wrong; the next build is right."""

from __future__ import annotations

from pathlib import Path

from support.crafted_objects import in_child
from support.datasets_on_disk import write_dataset
from support.soak import SOAK

CASES = 400 if SOAK else 12


def test_crafted_outputs_are_computed_again(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 80)
    found = list(in_child("crafted_builds", config, tmp_path / "store", 0, CASES))
    assert len(found) == CASES
    named = (
        "read",
        "healed",
        "StoreError",
        "ConfigError",
        "DataValidationError",
        "RejectedRowsError",
        "TokenizerError",
    )
    assert not [one for one in found if one.partition(": ")[2] not in {f"{first}, read" for first in named}]
    assert sum(": healed" in one for one in found) > CASES // 3
