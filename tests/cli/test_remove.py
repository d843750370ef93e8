"""`tokenloom remove`, and which names in a store count as datasets."""

from __future__ import annotations

import json
from pathlib import Path

from support.datasets_on_disk import write_dataset
from support.terminal import run_here
from tokenloom.resources.store import ArtifactStore


def objects(folder: Path) -> int:
    return len([*(folder / "store/objects").rglob("*.arrow")])


def test_a_removed_dataset_is_gone_and_gc_frees_what_only_it_needs(tmp_path: Path) -> None:
    kept, removed = write_dataset(tmp_path, name="kept", seed=1), write_dataset(tmp_path, name="removed", seed=2)
    run_here("build", kept, folder=tmp_path)
    alone = objects(tmp_path)
    run_here("build", removed, folder=tmp_path)
    run_here("inspect", removed, "--json", folder=tmp_path)
    done = run_here("remove", "removed", folder=tmp_path)
    assert (done.returncode, done.stdout) == (
        0, "removed removed, 1 version; free its space with: tokenloom gc --delete\n"
    )  # fmt: skip
    assert ArtifactStore(tmp_path / "store").datasets() == ["kept"]
    assert run_here("gc", "--older-than", "0s", "--delete", folder=tmp_path).returncode == 0
    assert objects(tmp_path) == alone
    assert run_here("verify", folder=tmp_path).returncode == 0
    built = run_here("build", kept, "--json", folder=tmp_path)
    assert all(stage["chunks"] == stage["chunks_reused"] for stage in json.loads(built.stdout)["stages"])


def test_a_wrong_name_and_a_pinned_dataset_are_refused(tmp_path: Path) -> None:
    config = write_dataset(tmp_path)
    run_here("build", config, folder=tmp_path)
    wrong = run_here("remove", "smal", folder=tmp_path)
    assert (wrong.returncode, "did you mean small?" in wrong.stderr) == (2, True)
    for name in ("../objects", "", "..", "a/b"):
        assert run_here("remove", name, folder=tmp_path).returncode == 2
    run_here("pin", "small", "--as", "run1", folder=tmp_path)
    pinned = run_here("remove", config, folder=tmp_path)
    assert (pinned.returncode, "tokenloom unpin small --as run1" in pinned.stderr) == (2, True)
    assert run_here("preview", config, folder=tmp_path).stderr.count("as built") == 1


def test_inspected_sources_and_failed_builds_are_not_listed_as_datasets(tmp_path: Path) -> None:
    good, bad = write_dataset(tmp_path, name="good"), write_dataset(tmp_path, name="bad")
    bad.write_text(bad.read_text().replace("{output}", "{outputs}"))
    run_here("build", good, folder=tmp_path)
    run_here("inspect", good, "--json", folder=tmp_path)
    assert run_here("build", bad, folder=tmp_path).returncode == 2
    assert ArtifactStore(tmp_path / "store").datasets() == ["good"]
    unknown = run_here("versions", "other", folder=tmp_path)
    assert (unknown.returncode, "(datasets: good)" in unknown.stderr) == (2, True)
    failed = run_here("versions", "bad", folder=tmp_path)
    assert (failed.returncode, "has no sequences yet" in failed.stderr) == (2, True)
