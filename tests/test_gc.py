"""`gc` frees what no kept state needs and nothing else, whatever runs beside it and whenever it is killed."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from datasets_on_disk import rows, write_dataset
from store_files import age, flip, latest, object_path, reachable, snapshot, stems, versions
from test_build import SMALL, digests
from test_cli import run

from tokenloom import open_dataset
from tokenloom.assets.build import Build, StageReport
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreAddressError, StoreError
from tokenloom.loaders import TokenDataset
from tokenloom.resources.compute import ComputeEngine
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.garbage import Garbage, collect
from tokenloom.resources.store.integrity import verify
from tokenloom.resources.store.objects import encode_table

SOAK = os.environ.get("TOKENLOOM_SOAK") == "1"
SEQUENCES, KILLS, ROUNDS = (200, 80, 40) if SOAK else (4, 6, 3)

NOW, DAY = timedelta(0), timedelta(days=1)


def build(config: Path, store: Path, workers: int = 2) -> dict[str, StageReport]:
    made = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(workers), chunk_size=SMALL)
    return {report.name: report for report in made.run_all()}


def gc(store: Path, keep: int = 3, older_than: timedelta = NOW) -> Garbage:
    return collect(ArtifactStore(store), keep, older_than, delete=True)


def content(store: Path, name: str, version: str | None = None) -> str:
    """A digest of all rows of a version, as a loader reads them."""
    opened = ArtifactStore(store)
    dataset = TokenDataset(opened, opened.manifest(name, version=version), "train")
    return digest_json([dataset[row]["labels"].tolist() for row in range(len(dataset))])


def settings(config: Path, **sections: Any) -> None:
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | sections))


def states(folder: Path, tokenizer: Path, count: int, rows: int = 120) -> list[Path]:
    """YAMLs of one dataset whose templates differ, so that all but the first stages do."""
    named = {"name_or_path": str(tokenizer), "max_length": 64}
    template = "{{instruction}}\n{{output}}\nstate {}\n"
    made = []
    for number in range(count):
        prompt = {"format_type": "custom", "template": template.format(number), "label_column": "output"}
        made.append(write_dataset(folder / str(number), rows, tokenizer=named, prompt_template=prompt))
    return made


def test_what_is_reached_stays_and_everything_else_goes(tmp_path: Path, tokenizer_folder: Path) -> None:
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


def test_a_rebuild_of_what_was_collected_equals_a_cold_one(tmp_path: Path, tokenizer_folder: Path) -> None:
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
    }  # what both states need was kept


def test_tokenizers_go_with_the_last_state_that_names_them(tmp_path: Path) -> None:
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


def test_without_delete_nothing_changes_and_the_same_is_told(tmp_path: Path, tokenizer_folder: Path) -> None:
    for config in states(tmp_path, tokenizer_folder, 3):
        build(config, tmp_path / "store")
    before = snapshot(tmp_path / "store")
    wanted = ["gc", "--keep", 1, "--older-than", "0s", "--json"]
    dry = json.loads(run(*wanted, folder=tmp_path).stdout)
    assert snapshot(tmp_path / "store") == before
    told = run("gc", "--keep", 1, "--older-than", "0s", folder=tmp_path)
    assert "nothing was removed; --delete does it" in told.stdout
    done = json.loads(run(*wanted, "--delete", folder=tmp_path).stdout)
    assert {**done, "deleted": False} == dry
    freed = sum(len(data) for path, (data, _) in before.items() if not Path(path).exists())
    assert freed == sum(done[kind]["bytes"] for kind in ("versions", "actions", "objects", "tokenizers"))
    assert done["datasets"]["small"]["objects"] == done["objects"]["count"] > 0
    assert "nothing to free" in run("gc", "--keep", 1, "--older-than", "0s", folder=tmp_path).stdout


@pytest.mark.parametrize(
    "arguments", [["--older-than", "1"], ["--older-than", "-1d"], ["--keep", "0"], ["--store", "no"]]
)
def test_a_wrong_command_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    done = run("gc", *arguments, folder=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_what_is_young_stays_with_what_it_names(tmp_path: Path, tokenizer_folder: Path) -> None:
    first, second = states(tmp_path, tokenizer_folder, 2)
    store = tmp_path / "store"
    build(first, store)
    age(store)
    own = stems(store, "actions")
    build(second, store)
    # With no manifest that names them, the first state's old objects hang on two young actions alone.
    only = sorted(own - reachable(store, keep=1)[1])
    for key in only[:2]:
        os.utime(store / "actions" / key[:2] / f"{key}.json")
    gc(store, 1, DAY)
    objects, actions = reachable(store, keep=1)
    opened = ArtifactStore(store)
    assert stems(store, "actions") == actions | set(only[:2])
    named = {action.output for key in only[:2] if (action := opened.actions.get(key))}
    assert len(named) == 2
    assert stems(store, "objects") == objects | named
    assert all(opened.find_action(key) for key in only[:2])


def test_an_unchanged_build_touches_what_is_old_and_only_that(tmp_path: Path, tokenizer_folder: Path) -> None:
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


def test_a_damaged_root_is_named_and_nothing_is_removed(tmp_path: Path, tokenizer_folder: Path) -> None:
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
    with pytest.raises(StoreAddressError, match="there is no store"):
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
        with pytest.raises(StoreError, match=f"{link} of the store .* is a symbolic link"):
            gc(store, keep=1)
        (store / link).unlink()
    shutil.move(store / "datasets", outside / "datasets")
    (store / "datasets").symlink_to(outside / "datasets")
    before = snapshot(tmp_path)
    with pytest.raises(StoreError, match=r"datasets of the store .* is a symbolic link"):
        gc(store, keep=1)
    assert snapshot(tmp_path) == before


# Whatever is built, collected and read, in any order.


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_any_order_of_builds_and_collections_keeps_the_last_states(
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
            dropping = tuple(one for one in "ab" if _drops(store, one))
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


# Beside other processes.

_BUILDING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_gc import build
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
from datetime import timedelta
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.garbage import collect
store = ArtifactStore(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
collect(store, 1, timedelta(0), delete=True)
"""


@contextmanager
def process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said that it is ready."""
    command = [sys.executable, "-c", code, str(Path(__file__).parent), *map(str, arguments)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert ask(started) == "ready"
        yield started
    finally:
        started.kill()
        started.wait()


def ask(started: subprocess.Popen[str], line: str | None = None) -> str:
    """The process's next line, after a line to it."""
    assert started.stdin is not None and started.stdout is not None
    if line is not None:
        started.stdin.write(f"{line}\n")
        started.stdin.flush()
    return started.stdout.readline().strip()


def test_a_build_beside_collections_loses_nothing(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    configs = states(tmp_path, tokenizer_folder, 2, rows=600)
    expected = [build(config, store)["sequences"].digest for config in configs]
    collections = 0
    with process(_BUILDING) as building:
        for turn in range(2 * ROUNDS):
            # Old objects and actions of a state that no version names once the other one is the latest.
            age(store)
            assert building.stdin is not None and building.stdout is not None
            building.stdin.write(f"{configs[turn % 2]} {store}\n")
            building.stdin.flush()
            while not _readable(building):
                gc(store, 1, DAY)
                collections += 1
            assert building.stdout.readline().strip() == expected[turn % 2]
            assert verify(ArtifactStore(store)).findings == []
    assert collections > 2 * ROUNDS


def _readable(started: subprocess.Popen[str]) -> bool:
    import select

    assert started.stdout is not None
    return bool(select.select([started.stdout], [], [], 0.0)[0])


@pytest.mark.parametrize("how", ["opened", "pickled"])
def test_a_process_that_reads_keeps_its_version(tmp_path: Path, tokenizer_folder: Path, how: str) -> None:
    store = tmp_path / "store"
    first, *later = states(tmp_path, tokenizer_folder, 3)
    build(first, store)
    (version,), expected = versions(store, "small"), content(store, "small")
    with process(_READING, store, how) as reading:
        for config in later:
            build(config, store)
        gc(store, keep=1)
        assert versions(store, "small")[0]["digest"] == version["digest"]
        for record in (store / "versions" / "small").glob("*.json"):  # held also where no version names it
            record.unlink()
        gc(store, keep=1)
        assert ask(reading, "read") == expected
    gc(store, keep=1)
    assert version["stages"]["sequences"] not in stems(store, "objects")
    assert stems(store, "objects") == reachable(store, 1)[0]


def test_a_dataset_whose_manifest_is_gone_says_so(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    for config in states(tmp_path, tokenizer_folder, 2):
        build(config, store)
    dataset = open_dataset("small", store=store)
    kept = pickle.dumps(dataset)
    manifest = latest(store, "small")["sequences"]
    object_path(store, manifest).unlink()
    with pytest.raises(StoreError, match=f"object {manifest} has been removed by gc; open the dataset again"):
        pickle.loads(kept)


def test_a_collection_killed_at_any_moment_leaves_a_whole_store(tmp_path: Path, tokenizer_folder: Path) -> None:
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
            collecting.send_signal(signal.SIGKILL)
            collecting.wait()
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
