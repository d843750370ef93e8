"""`gc` removes what no kept version needs, and nothing else."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from support.builds import build, digests
from support.datasets_on_disk import rows, write_dataset
from support.garbage import DAY, NOW, content, gc, states
from support.soak import SOAK
from support.store_files import age, flip, latest, object_path, reachable, snapshot, stems, versions
from support.terminal import run_here
from tokenloom import open_dataset
from tokenloom.errors import StoreAddressError, StoreError
from tokenloom.resources.file_lock import lock_shared
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.store.verify import verify
from tokenloom.resources.store.versions import ReadLock

SEQUENCES = 200 if SOAK else 4


def settings(config: Path, **sections: Any) -> None:
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | sections))


def test_only_unreachable_blobs_are_removed(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    *earlier, config = states(tmp_path, tokenizer_folder, 4)
    for one in earlier:
        build(one, store)
    cold = build(config, store)
    objects, actions = reachable(store, keep=2)
    found = gc(store, keep=2)
    assert (stems(store, "objects"), stems(store, "actions")) == (objects, actions)
    assert len(versions(store, "small")) == 2
    assert (len(found.versions), len(found.tokenizers)) == (2, 0)
    assert found.actions and set(found.owners.values()) == {"small"}
    warm = build(config, store)
    assert digests(warm) == digests(cold)
    assert all(report.chunks == report.chunks_reused for report in warm.values())
    assert verify(ArtifactStore(store)).findings == []


def test_a_version_that_gc_removes_while_it_is_opened_is_opened_anew(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (first, second) = tmp_path / "store", states(tmp_path, tokenizer_folder, 2)
    build(first, store)
    lock, waiting = ArtifactStore.read_lock, [True]

    def overtaken(opened: ArtifactStore, digest: str) -> ReadLock | None:
        if waiting:
            waiting.clear()
            build(second, store)
            gc(store, keep=1)
        return lock(opened, digest)

    monkeypatch.setattr(ArtifactStore, "read_lock", overtaken)
    dataset = open_dataset("small", store=store)
    assert dataset.version == ArtifactStore(store).manifest("small").digest
    assert len(dataset[0]["input_ids"])
    assert not waiting


def test_an_output_that_a_build_is_touching_is_kept(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    for config in states(tmp_path, tokenizer_folder, 2):
        build(config, store)
    kept, _ = reachable(store, keep=1)
    touched = max(stems(store, "objects") - kept)
    with object_path(store, touched).open("rb") as file:
        lock_shared(file)
        gc(store, keep=1)
        assert touched in stems(store, "objects")
    gc(store, keep=1)
    assert stems(store, "objects") == kept


def test_versions_that_are_too_young_are_read_once(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, get = [0], ObjectStore.get

    def counted(objects: ObjectStore, digest: str) -> pa.Table:
        read[0] += 1
        return get(objects, digest)

    monkeypatch.setattr(ObjectStore, "get", counted)
    reads = []
    for number, config in enumerate(states(tmp_path, tokenizer_folder, 9, rows=8), 1):
        build(config, tmp_path / "store")
        if number in (3, 6, 9):
            read[0] = 0
            assert not gc(tmp_path / "store", keep=1, older_than=DAY).versions
            reads.append(read[0])
    first, second, third = reads
    assert third - second == second - first


def test_a_rebuild_after_gc_equals_a_cold_build(tmp_path: Path, tokenizer_folder: Path) -> None:
    first, second = states(tmp_path, tokenizer_folder, 2)
    store = tmp_path / "store"
    cold = build(first, store)
    build(second, store)
    gc(store, keep=1)
    again = build(first, store)
    assert digests(again) == digests(cold)
    reused = {name: report.chunks_reused == report.chunks for name, report in again.items()}
    assert reused == {
        name: name in ("raw", "schema", "columns", "tokenizer") for name in cold
    }  # kept, because both states need it


def test_tokenizers_are_removed_with_the_last_state_that_names_them(tmp_path: Path) -> None:
    store = tmp_path / "store"
    config = write_dataset(tmp_path, 100)
    build(config, store)
    (first,) = (store / "tokenizers").iterdir()
    settings(config, dataset={"name": "small.jsonl", "filters": ["len(output) > 50"]})
    build(config, store)
    found = gc(store, keep=2)
    assert not found.tokenizers and first.joinpath("tokenizer.json").exists()
    found = gc(store, keep=1)
    assert {Path(blob.name).name for blob in found.tokenizers} >= {"tokenizer.json", "tokenizer_config.json"}
    assert not list(first.glob("*"))
    assert Path(open_dataset("small", store=store).tokenizer_path, "tokenizer.json").exists()


def test_without_delete_the_same_is_reported_and_nothing_changes(tmp_path: Path, tokenizer_folder: Path) -> None:
    for config in states(tmp_path, tokenizer_folder, 3):
        build(config, tmp_path / "store")
    before = snapshot(tmp_path / "store")
    command = ["gc", "--keep", 1, "--older-than", "0s", "--json"]
    dry = json.loads(run_here(*command, folder=tmp_path).stdout)
    assert snapshot(tmp_path / "store") == before
    printed = run_here("gc", "--keep", 1, "--older-than", "0s", folder=tmp_path)
    assert "nothing was deleted; run with --delete to delete it" in printed.stdout
    done = json.loads(run_here(*command, "--delete", folder=tmp_path).stdout)
    assert {**done, "deleted": False} == dry
    freed = sum(len(data) for path, (data, _) in before.items() if not Path(path).exists())
    assert freed == sum(done[kind]["bytes"] for kind in ("versions", "actions", "objects", "tokenizers"))
    assert done["datasets"]["small"]["objects"] == done["objects"]["count"] > 0
    steps = [line.removeprefix("gc: ") for line in printed.stderr.splitlines() if line.startswith("gc: ")]
    assert steps == ["reading manifests", "listing actions", "listing objects"]
    assert "nothing to free" in run_here("gc", "--keep", 1, "--older-than", "0s", folder=tmp_path).stdout


@pytest.mark.parametrize(
    "arguments", [["--older-than", "1"], ["--older-than", "-1d"], ["--keep", "0"], ["--store", "no"]]
)
def test_a_wrong_command_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    done = run_here("gc", *arguments, folder=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_recent_blobs_and_what_they_name_are_kept(tmp_path: Path, tokenizer_folder: Path) -> None:
    first, second = states(tmp_path, tokenizer_folder, 2)
    store = tmp_path / "store"
    build(first, store)
    age(store)
    own = stems(store, "actions")
    build(second, store)
    # No manifest names the first state's old objects any more: only two recent actions keep them.
    only = sorted(own - reachable(store, keep=1)[1])
    for key in only[:2]:
        os.utime(store / "actions" / key[:2] / f"{key}.json")
    gc(store, 1, DAY)
    objects, actions = reachable(store, keep=1)
    opened = ArtifactStore(store)
    assert stems(store, "actions") == actions | set(only[:2])
    recent = [action for key in only[:2] if (action := opened.actions.get(key))]
    assert len({action.output for action in recent}) == 2
    assert stems(store, "objects") == objects.union(*(action.objects.values() for action in recent))
    assert all(opened.find_action(key) for key in only[:2])


def test_an_unchanged_build_touches_only_old_blobs(tmp_path: Path, tokenizer_folder: Path) -> None:
    (config,) = states(tmp_path, tokenizer_folder, 1)
    store = tmp_path / "store"
    build(config, store)
    fresh = snapshot(store)
    build(config, store)
    assert snapshot(store) == fresh
    age(store)
    build(config, store)
    limit = time.time() - DAY.total_seconds()
    for key in stems(store, "actions"):
        assert (store / "actions" / key[:2] / f"{key}.json").stat().st_mtime > limit
    for digest in stems(store, "objects"):
        assert object_path(store, digest).stat().st_mtime > limit
    assert all(path.stat().st_mtime > limit for path in store.glob("tokenizers/*/*"))


def test_a_damaged_root_is_reported_and_nothing_is_removed(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    for config in states(tmp_path, tokenizer_folder, 3):
        build(config, store)
    manifest = object_path(store, versions(store, "small")[1]["stages"]["sequences"])
    (record, *_) = sorted((store / "versions" / "small").glob("*.json"))
    pointer = store / "datasets" / "small" / "raw.json"
    for path, message in (
        (manifest, "manifest of small"),
        (record, "cannot be read"),
        (pointer, "raw.json is damaged"),
    ):
        whole = path.read_bytes()
        flip(path, 2 if path is not manifest else len(whole) // 2)
        before = snapshot(store)
        with pytest.raises(StoreError, match=message):
            gc(store, keep=2)
        assert snapshot(store) == before
        path.write_bytes(whole)
    flip(manifest, 500)
    assert verify(ArtifactStore(store)).findings
    gc(store, keep=1)
    with pytest.raises(StoreAddressError, match="no store found"):
        gc(tmp_path / "elsewhere")


def test_nothing_outside_the_store_is_touched(tmp_path: Path, tokenizer_folder: Path) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    first, second = states(tmp_path, tokenizer_folder, 2)
    build(first, store)
    build(second, store)
    stray = "ab" * 32
    (outside / "ab").mkdir(parents=True)
    (outside / "ab" / f"{stray}.arrow").write_bytes(b"mine")
    (store / "objects" / "ab").mkdir(exist_ok=True)
    (store / "objects" / "notes.txt").write_text("mine")
    (store / "objects" / "ab" / f"{stray}.arrow").symlink_to(outside / "ab" / f"{stray}.arrow")
    age(store)
    before = snapshot(outside)
    gc(store, keep=1)
    assert not (store / "objects" / "ab" / f"{stray}.arrow").is_symlink()
    assert (store / "objects" / "notes.txt").exists()
    assert snapshot(outside) == before
    for link, target in (("objects/zz", outside / "ab"), ("datasets/away", outside), ("versions/away", outside)):
        (store / link).symlink_to(target)
        with pytest.raises(StoreError, match=f"{link} in the store .* is a symbolic link"):
            gc(store, keep=1)
        (store / link).unlink()
    shutil.move(store / "datasets", outside / "datasets")
    (store / "datasets").symlink_to(outside / "datasets")
    before = snapshot(tmp_path)
    with pytest.raises(StoreError, match=r"datasets in the store .* is a symbolic link"):
        gc(store, keep=1)
    assert snapshot(tmp_path) == before


# Builds, collections and reads in any order.


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_the_last_states_survive_any_order_of_builds_and_collections(
    tmp_path: Path, tokenizer_folder: Path, seed: int
) -> None:
    draw, store, cold = random.Random(seed), tmp_path / "store", tmp_path / "cold"
    named = {"name_or_path": str(tokenizer_folder), "max_length": 512}
    data = {name: rows(60, number) for number, name in enumerate("ab")}
    keeps = dict.fromkeys("ab", "all")
    published: dict[str, list[tuple[str, str]]] = {"a": [], "b": []}
    for _ in range(14):
        name, step = draw.choice("ab"), draw.choice(["build", "build", "rows", "keep", "age", "gc", "gc"])
        if step == "rows":
            data[name] = data[name][: draw.randint(40, 60)] + rows(draw.randint(1, 9), draw.randrange(99))
        elif step == "keep":
            keeps[name] = draw.choice(["all", "sequences"])
        elif step == "age":
            age(store, draw.choice([0.5, 2.0]))
        elif step == "gc" and store.exists():
            keep, older_than = draw.randint(1, 3), draw.choice([NOW, DAY])
            dropping = tuple(name for name in "ab" if _drops(store, name))
            objects, actions = reachable(store, keep, dropping)
            before = stems(store, "objects")
            gc(store, keep, older_than)
            assert stems(store, "objects") >= objects & before
            assert stems(store, "actions") >= actions
            if older_than == NOW:
                assert stems(store, "objects") <= objects
                assert stems(store, "actions") == actions
            for one in "ab":
                kept = list(dict.fromkeys(reversed([digest for digest, _ in published[one]])))[:keep]
                published[one] = [pair for pair in published[one] if pair[0] in kept]
                for digest, rows_read in published[one]:
                    assert content(store, one, digest) == rows_read
            assert verify(ArtifactStore(store)).findings == []
        elif step == "build":
            length = {"packing": draw.choice(["none", "concat"])}
            config = write_dataset(tmp_path, 1, name, tokenizer=named, length=length, keep=keeps[name])
            config.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in data[name]))
            found = digests(build(config, store, workers=1))
            assert found == digests(build(config, cold, workers=1))
            published[name].append((found["sequences"], content(store, name)))
            assert verify(ArtifactStore(store)).findings == []


def _drops(store: Path, name: str) -> bool:
    manifest = latest(store, name).get("raw")
    return manifest is not None and ArtifactStore(store).manifest(name, "raw").notes.get("keep") == "sequences"
