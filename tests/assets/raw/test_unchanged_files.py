"""An unchanged file is not read again, unless it is modified or its chunks are missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.builds import build, digests, frozen_tokenizer
from support.datasets_on_disk import write_dataset
from tokenloom.resources.sources.source_file import SourceFile
from tokenloom.resources.store import ArtifactStore, known_files


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the files that are read."""
    found: list[str] = []
    blocks = SourceFile.blocks

    def noted(self: SourceFile) -> Iterator[bytes]:
        found.append(self.name)
        return blocks(self)

    monkeypatch.setattr(SourceFile, "blocks", noted)
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settled")
    write_dataset(folder, 600, tokenizer=frozen_tokenizer(folder))
    return folder


@pytest.fixture
def settled(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a dataset. Files get entries at once, not 2 seconds after their last modification."""
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 0.0)
    return data


def test_a_file_is_read_once(settled: Path, tmp_path: Path, reads: list[str]) -> None:
    cold = build(settled / "small.yaml", tmp_path / "store")
    assert reads == ["small.jsonl"]
    again = build(settled / "small.yaml", tmp_path / "store")
    assert reads == ["small.jsonl"]
    assert digests(again) == digests(cold)
    assert again["raw"].chunks_reused == cold["raw"].chunks
    for path in (tmp_path / "store" / "files").iterdir():
        assert str(settled).encode() not in path.read_bytes()


def test_a_missing_chunk_makes_the_file_be_read_again(settled: Path, tmp_path: Path, reads: list[str]) -> None:
    cold = build(settled / "small.yaml", tmp_path / "store")
    store = ArtifactStore(tmp_path / "store")
    store.objects.delete(store.manifest("small", "raw").chunks[1].output)
    healed = build(settled / "small.yaml", tmp_path / "store")
    assert len(reads) == 2
    assert digests(healed) == digests(cold)
    assert healed["raw"].chunks - healed["raw"].chunks_reused == 1


def test_a_change_that_keeps_size_and_time_is_detected(settled: Path, tmp_path: Path) -> None:
    shutil.copytree(settled, tmp_path / "data")
    data = tmp_path / "data" / "small.jsonl"
    before = build(tmp_path / "data" / "small.yaml", tmp_path / "store")
    stood = data.stat()
    data.write_bytes(data.read_bytes().replace(b"river", b"rover", 1))
    os.utime(data, ns=(stood.st_atime_ns, stood.st_mtime_ns))
    assert (data.stat().st_size, data.stat().st_mtime_ns) == (stood.st_size, stood.st_mtime_ns)
    after = build(tmp_path / "data" / "small.yaml", tmp_path / "store")
    assert after["raw"].digest != before["raw"].digest
    assert digests(after) == digests(build(tmp_path / "data" / "small.yaml", tmp_path / "cold"))


def test_a_recently_modified_file_is_always_read(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 1e6)
    config = write_dataset(tmp_path)
    for _ in range(2):
        build(config, tmp_path / "store")
    assert reads == ["small.jsonl"] * 2


def test_changed_settings_make_the_file_be_read_again(settled: Path, tmp_path: Path, reads: list[str]) -> None:
    build(settled / "small.yaml", tmp_path / "store")
    text = (settled / "small.yaml").read_text(encoding="utf-8")
    other = settled / "other.yaml"
    other.write_text(text.replace("name: small.jsonl", "name: small.jsonl\n  val_split: 0.2"), encoding="utf-8")
    split = build(other, tmp_path / "store")
    assert len(reads) == 2
    assert digests(split) == digests(build(other, tmp_path / "cold"))


@pytest.mark.parametrize("count", [30, 400], ids=["files that share chunks", "large files"])
def test_a_file_that_moves_to_another_split_is_read_for_it(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 0.0)
    folder = tmp_path / "rows" / "data"
    for number, name in enumerate("abcd"):
        write_dataset(folder, count, name, seed=number)
    dataset = {"name": "data", "val_split": 0.2}
    yaml = write_dataset(tmp_path / "rows", 1, dataset=dataset, tokenizer=frozen_tokenizer(tmp_path))
    for train, odd in (("ab", "cd"), ("cd", "ab"), ("ac", "bd"), ("ab", "cd")):
        splits = f"[{{split: train, path: '[{train}].jsonl'}}, {{split: odd, path: '[{odd}].jsonl'}}]"
        (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: x\n  data_files: {splits}\n---\n")
        known = build(yaml, tmp_path / "store")
        fresh = build(yaml, tmp_path / f"fresh-{train}")
        assert digests(known) == digests(fresh)
        manifest = ArtifactStore(tmp_path / "store").manifest("small", "raw")
        assert manifest.splits == ["train", "validation", "odd"]
        assert {run.source for chunk in manifest.chunks for run in chunk.runs if chunk.split == "odd"} == {
            f"{name}.jsonl" for name in odd
        }
