"""Objects with right digests and wrong content raise a StoreError: no crash, no other error, no wrong batch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.crafted_objects import in_child, named_cases, place_of_offsets, publish, read_all
from support.soak import SOAK
from support.stored_sequences import write_numbered
from tokenloom import open_dataset
from tokenloom.errors import StoreError
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.actions import MAX_ROWS
from tokenloom.resources.store.verify import verify as check

NAMES = ("rows", "packed", "padded", "padded-rows")
CASES = 3000 if SOAK else 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crafted")
    for name in NAMES:
        packed, multiple = name in ("packed", "padded"), 8 if "padded" in name else 0
        write_numbered(folder, name, [40, 20], 60, packed, multiple=multiple)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_crafted_chunks_raise_a_store_error(copied: Path, name: str, verify: bool) -> None:
    store = ArtifactStore(copied)
    manifest = store.manifest(name)
    table = store.objects.get(manifest.chunks[0].output)
    assert read_all(name, copied, verify) > 10
    for case, data in named_cases(table).items():
        if case == "compressed" and not verify:
            continue
        chunk = publish(store, manifest, data)
        with pytest.raises(StoreError, match=chunk.output):
            read_all(name, copied, verify)
            pytest.fail(case)
        found = check(store, name, remove=False).findings
        assert [(one.digest, one.problem) for one in found] == [(chunk.output, "damaged")], case


def test_a_manifest_that_claims_other_rows_raises_a_store_error(copied: Path) -> None:
    store = ArtifactStore(copied)
    manifest = store.manifest("rows")
    data = bytes(store.objects.mapped(manifest.chunks[0].output))
    for rows in (0, 39, 41, 40 * 100_000, MAX_ROWS):
        publish(store, manifest, data, table_rows=rows)
        with pytest.raises(StoreError, match="damaged"):
            read_all("rows", copied, True)


def test_crafted_bytes_never_end_the_process(copied: Path) -> None:
    found = list(in_child("crafted_objects", copied, 0, CASES))
    assert len(found) == CASES
    assert {*found} <= {"read", "StoreError"}, [one for one in found if one not in ("read", "StoreError")][:5]
    assert found.count("StoreError") > CASES // 3


def test_an_offset_that_changes_after_opening_raises_a_store_error(copied: Path) -> None:
    store = ArtifactStore(copied)
    path = store.objects.path(store.manifest("rows").chunks[0].output)
    dataset = open_dataset("rows", store=copied)
    _ = dataset[0]
    place = place_of_offsets(path.read_bytes())
    with path.open("r+b") as file:
        file.seek(place + 20)
        file.write(b"\xff\xff\xff\x7f")
    with pytest.raises(StoreError, match="beyond its chunk"):
        _ = dataset[5]
