"""`gc` concurrent with builds and readers in other processes, and killed at any moment."""

from __future__ import annotations

import pickle
import random
import select
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pyarrow as pa
import pytest

from support.builds import build, digests
from support.garbage import DAY, NOW, content, gc, states
from support.masked_platform import needs_file_locks
from support.paths import TESTS
from support.processes import Process, ask, next_line, started
from support.soak import SOAK, machine
from support.store_files import age, latest, object_path, reachable, stems, versions
from tokenloom import open_dataset
from tokenloom.errors import StoreError
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.gc import collect
from tokenloom.resources.store.objects import encode_table
from tokenloom.resources.store.verify import verify

pytestmark = machine("kills")

KILLS, ROUNDS = (80, 40) if SOAK else (6, 3)

_BUILDING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.builds import build
print("ready", flush=True)
for line in sys.stdin:
    config, store = line.split()
    print(build(Path(config), Path(store))["sequences"].digest, flush=True)
"""

_READING = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
from tokenloom import open_dataset
from tokenloom.resources.digest import digest_json
dataset = open_dataset("small", store=sys.argv[2])
if sys.argv[3] == "pickled":
    dataset = pickle.loads(pickle.dumps(dataset))
print("ready", flush=True)
sys.stdin.readline()
print(digest_json([dataset[row]["labels"].tolist() for row in range(len(dataset))]), flush=True)
"""

_COLLECTING = """
import sys
import time
from datetime import timedelta
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.gc import collect
store = ArtifactStore(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
sys.addaudithook(lambda event, _: time.sleep(0.002) if event == "os.remove" else None)  # so that a kill comes in time
collect(store, 1, timedelta(0), delete=True)
"""


@contextmanager
def process(code: str, *arguments: object) -> Iterator[Process]:
    """A Python process that has printed that it is ready."""
    with started([sys.executable, "-c", code, TESTS, *arguments], stdin=PIPE, stdout=PIPE) as made:
        assert next_line(made) == "ready\n"
        yield made


def test_a_build_concurrent_with_gc_loses_nothing(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    configs = states(tmp_path, tokenizer_folder, 2, rows=600)
    expected = [build(config, store)["sequences"].digest for config in configs]
    collections = 0
    with process(_BUILDING) as building:
        for turn in range(2 * ROUNDS):
            # Make the blobs old: those of the state that is not the latest are then garbage.
            age(store)
            assert building.stdin is not None
            building.stdin.write(f"{configs[turn % 2]} {store}\n")
            building.stdin.flush()
            while not _readable(building):
                gc(store, 1, DAY)
                collections += 1
            assert next_line(building).strip() == expected[turn % 2]
            assert verify(ArtifactStore(store)).findings == []
    assert collections > 2 * ROUNDS


def _readable(made: Process) -> bool:
    assert made.stdout is not None
    return bool(select.select([made.stdout], [], [], 0.0)[0])


@needs_file_locks
@pytest.mark.parametrize("how", ["opened", "pickled"])
def test_gc_keeps_a_version_that_a_process_has_open(tmp_path: Path, tokenizer_folder: Path, how: str) -> None:
    store = tmp_path / "store"
    first, *later = states(tmp_path, tokenizer_folder, 3)
    build(first, store)
    (version,), expected = versions(store, "small"), content(store, "small")
    with process(_READING, store, how) as reading:
        for config in later:
            build(config, store)
        gc(store, keep=1)
        assert versions(store, "small")[0]["digest"] == version["digest"]
        for record in (store / "versions" / "small").glob("*.json"):  # the lock works without a version
            record.unlink()
        gc(store, keep=1)
        assert ask(reading, "read").strip() == expected
    gc(store, keep=1)
    assert version["stages"]["sequences"] not in stems(store, "objects")
    assert stems(store, "objects") == reachable(store, 1)[0]


def test_opening_a_removed_manifest_is_reported(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    for config in states(tmp_path, tokenizer_folder, 2):
        build(config, store)
    dataset = open_dataset("small", store=store)
    kept = pickle.dumps(dataset)
    manifest = latest(store, "small")["sequences"]
    object_path(store, manifest).unlink()
    with pytest.raises(StoreError, match=f"object {manifest} has been removed by gc; open the dataset again"):
        pickle.loads(kept)


def test_gc_killed_at_any_moment_leaves_an_intact_store(tmp_path: Path, tokenizer_folder: Path) -> None:
    full, configs = tmp_path / "full", states(tmp_path, tokenizer_folder, 3, rows=300)
    expected = [digests(build(config, full)) for config in configs][-1]
    opened = ArtifactStore(full)
    action = next(found for key in stems(full, "actions") if (found := opened.actions.get(key)))
    for number in range(200):  # what interrupted builds leave: actions and objects of no manifest
        stray = opened.objects.put(encode_table(pa.table({"n": [number]}), compressed=False))
        opened.actions.put(f"{number:064x}", replace(action, output=stray, bytes=opened.objects.size(stray) or 0))
    found = collect(opened, 1, NOW)
    doomed = [blob.name for kind in (found.versions, found.actions, found.objects) for blob in kind]
    draw, partial = random.Random(5), 0
    for kill in range(KILLS):
        store = tmp_path / f"store{kill}"
        shutil.copytree(full, store)
        last = store / draw.choice(doomed)
        with process(_COLLECTING, store) as collecting:
            assert collecting.stdin is not None
            collecting.stdin.write("go\n")
            collecting.stdin.flush()
            while last.exists() and collecting.poll() is None:
                pass
        partial += any((store / name).exists() for name in doomed)
        assert verify(ArtifactStore(store)).findings == []
        for key in stems(store, "actions"):
            assert ArtifactStore(store).find_action(key), key
        again = build(configs[-1], store)
        assert digests(again) == expected
        assert all(report.chunks == report.chunks_reused for report in again.values())
        gc(store, keep=1)
        assert (stems(store, "objects"), stems(store, "actions")) == reachable(store, 1)
        shutil.rmtree(store)
    assert partial >= KILLS // 3
