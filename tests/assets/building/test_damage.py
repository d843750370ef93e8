"""A damaged store is detected, reported, and repaired by building again; damage is never read silently."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.builds import build, digests
from support.datasets_on_disk import write_dataset
from tokenloom import open_dataset
from tokenloom.errors import StoreError
from tokenloom.resources.store import ArtifactStore

Damage = Callable[[Path], None]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def heal(config: Path, store: Path) -> dict[str, str]:
    """Build; if that only reports the damage, build again."""
    for _ in range(3):
        try:
            return digests(build(config, store))
        except StoreError as error:
            assert "build again" in str(error)
    raise AssertionError("three builds did not heal the store")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, str]]:
    """A YAML, a store with its build, and the digests."""
    folder = tmp_path_factory.mktemp("whole")
    config = write_dataset(folder)
    return config, folder / "store", digests(build(config, folder / "store"))


@pytest.mark.parametrize("damage", [truncate, empty, remove])
@pytest.mark.parametrize("pattern", ["objects/*/*", "actions/*/*", "datasets/*/*", "tokenizers/*/*"])
def test_every_kind_of_file_is_repaired(
    whole: tuple[Path, Path, dict[str, str]], tmp_path: Path, pattern: str, damage: Damage
) -> None:
    config, source, expected = whole
    shutil.copytree(source, tmp_path / "store")
    for path in sorted((tmp_path / "store").glob(pattern)):
        damage(path)
    assert heal(config, tmp_path / "store") == expected
    dataset = open_dataset("small", store=tmp_path / "store")
    assert len([dataset[row] for row in range(len(dataset))]) == 300
    assert (Path(dataset.tokenizer_path) / "tokenizer.json").stat().st_size > 1000


@pytest.mark.parametrize("stage", ["raw", "columns", "prompts", "tokenizer", "tokens"])
def test_a_flipped_byte_never_reaches_an_output(
    whole: tuple[Path, Path, dict[str, str]], tmp_path: Path, stage: str
) -> None:
    config, source, expected = whole
    shutil.copytree(source, tmp_path / "store")
    store = ArtifactStore(tmp_path / "store")
    draw = random.Random(stage)
    for chunk in store.manifest("small", stage).chunks:
        path = store.objects.path(chunk.output)
        data = bytearray(path.read_bytes())
        data[draw.randrange(len(data))] ^= 0x40
        path.write_bytes(bytes(data))
    shutil.rmtree(tmp_path / "store" / "actions")
    with_all_recomputed = heal(config, tmp_path / "store")
    assert with_all_recomputed == expected


def test_a_damaged_object_is_named_when_it_is_read(whole: tuple[Path, Path, dict[str, str]], tmp_path: Path) -> None:
    shutil.copytree(whole[1], tmp_path / "store")
    store = ArtifactStore(tmp_path / "store")
    digest = store.manifest("small", "columns").chunks[0].output
    path = store.objects.path(digest)
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(StoreError, match=f"object {digest} was damaged and has been removed; build again"):
        store.objects.get_verified(digest)
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "{", '{"manifest": 5}', "[]"])
def test_a_damaged_pointer_is_reported_and_replaced(
    whole: tuple[Path, Path, dict[str, str]], tmp_path: Path, content: str
) -> None:
    config, source, expected = whole
    shutil.copytree(source, tmp_path / "store")
    (tmp_path / "store" / "datasets" / "small" / "sequences.json").write_text(content)
    with pytest.raises(StoreError, match=r"small/sequences\.json is damaged; build the dataset again"):
        open_dataset("small", store=tmp_path / "store")
    assert heal(config, tmp_path / "store") == expected
    assert len(open_dataset("small", store=tmp_path / "store")) == 300
