"""Any damage to any file of a store is reported by `verify`, and gives no wrong batch, no crash and no other error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.builds import build
from support.crafted_objects import in_child
from support.datasets_on_disk import write_dataset
from support.soak import SOAK
from tokenloom.resources.store import ArtifactStore, known_files
from tokenloom.resources.store.actions import Certificate

CASES = 1000 if SOAK else 45


def test_damage_is_reported_and_never_becomes_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 0.0)
    dataset = {"name": "small.jsonl", "keep_columns": ["input"]}
    config = write_dataset(tmp_path, 60, validation={"max_reject_fraction": 0.5}, dataset=dataset)
    data = tmp_path / "small.jsonl"
    lines = data.read_text().splitlines()
    lines[9], lines[30] = "{broken", json.dumps({"instruction": "say nothing", "input": "", "output": " "})
    data.write_text("\n".join(lines) + "\n")
    store = tmp_path / "store"
    build(config, store)
    certificates = ArtifactStore(store).certificates
    certificates.add("agreed", Certificate(((32, 126),), ((200, 200),)))
    certificates.void("wrong", "they differ")
    found = list(in_child("damaged_stores", store, "small", 0, CASES))
    assert len(found) == CASES
    kinds = {"FORMAT", "actions", "certificates", "datasets", "files", "objects", "probes", "tokenizers", "versions"}
    assert {one.partition("/")[0].partition(":")[0] for one in found} == kinds
    assert not [one for one in found if not one.endswith((": reported, read", ": reported, StoreError"))]
    assert sum(one.endswith("StoreError") for one in found) > CASES // 10
