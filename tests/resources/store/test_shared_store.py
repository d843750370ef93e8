"""Builders, `gc --delete` and a reader share a store, and are stopped at any moment: none disturbs another."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.masked_platform import needs_file_locks
from support.paths import TESTS
from support.processes import DEADLINE, run
from support.shared_store import BUILDERS, FREED, VARIANTS, batches, build, prepare, write_folder
from support.soak import SOAK, machine
from tokenloom import open_dataset
from tokenloom.loaders import open_mixture
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.verify import verify

pytestmark = machine("kills")

SECONDS, AGE = (600, 3) if SOAK else (4, 0)


@needs_file_locks
def test_builders_gc_and_a_reader_share_a_store(tmp_path: Path, tokenizer_folder: Path) -> None:
    write_folder(tmp_path, tokenizer_folder)
    prepare(tmp_path)
    command = [sys.executable, "-m", "support.shared_store", tmp_path, SECONDS, AGE, 7]
    done = json.loads(run(command, cwd=TESTS, check=True, seconds=SECONDS + DEADLINE).stdout)  # builds for SECONDS
    rounds = {name: len(entries) for name, entries in done["logs"].items()}
    freed = {kind: sum(each[kind] for each in done["logs"]["gc"]) for kind in FREED}
    seconds, read = done["seconds"], sum(entry["batches"] for entry in done["logs"]["reader"])
    print(f"\n{seconds:.0f} s, {done['stops']} stops; rounds: {rounds}; freed: {freed}; batches read: {read}")
    assert done["errors"] == {}
    assert set(done["ended"].values()) == {0}
    expected = {name: _cold(tmp_path, name) for name in BUILDERS}
    for name in BUILDERS:
        for entry in done["logs"][name]:
            digests, read = expected[name][entry["variant"]]
            # `b` is mixed in the version that was the latest when the build started.
            assert entry["digests"].pop("b in mix", None) in (None, *_sequences(expected["b"]))
            assert {key: value for key, value in digests.items() if key != "b in mix"} == entry["digests"]
            assert name == "mix" or entry["batches"] == read
    store = ArtifactStore(tmp_path / "store")
    verified = verify(store)
    print(f"verify: {verified.objects} objects, findings: {verified.findings}")
    assert verified.findings == []
    known = {name: _sequences(expected[name]) for name in "ab"}
    known["a"] |= {digests["a/sequences"] for digests, _ in expected["mix"]}
    known["c"] = {digests["c/sequences"] for digests, _ in expected["mix"]}
    for name, digests in known.items():
        published = {version.digest for version in store.versions.of(name)}
        assert published
        assert published <= digests
        for digest in published:
            assert batches(open_dataset(name, store=store.address, version=digest))
    assert batches(open_mixture("mix", store=store.address))
    assert min(freed.values()) > 0
    if SOAK:
        builds = [rounds[name] for name in BUILDERS]
        assert max(builds) <= 6 * min(builds)


def _cold(folder: Path, name: str) -> list[tuple[dict[str, str], list[str]]]:
    """Return the digests and batches of each variant of a builder, from builds in a store of their own."""
    clean = folder / f"clean-{name}"
    if name == "mix":
        build(folder / BUILDERS["b"], clean, 0)
    found = []
    for variant in range(VARIANTS):
        target, digests = build(folder / BUILDERS[name], clean, variant)
        found.append((digests, batches(target.open_split("train"))))
    return found


def _sequences(expected: list[tuple[dict[str, str], list[str]]]) -> set[str]:
    return {digests["sequences"] for digests, _ in expected}
