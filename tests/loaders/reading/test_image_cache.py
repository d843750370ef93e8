"""The cache of image inputs gives back what it got, keeps within its limit, and never shows half of a file."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.loaders.reading.images import ImageCache

ARRAYS = {
    "pixel_values": np.arange(60, dtype=np.float32).reshape(4, 3, 5),
    "image_grid_thw": np.array([[1, 2, 2]], np.int64),
    "mask": np.zeros((0, 4), bool),
}


def same(found: dict[str, np.ndarray] | None) -> bool:
    assert found is not None and list(found) == list(ARRAYS)
    return all(
        found[name].dtype == array.dtype and np.array_equal(found[name], array) for name, array in ARRAYS.items()
    )


def test_arrays_come_back_also_in_another_process(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "new" / "folder", 1 << 20)
    assert cache.get("a") is None
    cache.put("a", ARRAYS)
    assert same(cache.get("a"))
    assert same(pickle.loads(pickle.dumps(cache)).get("a"))


def test_what_does_not_fit_is_not_kept(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, 1200)
    for key in "abcdef":
        cache.put(key, ARRAYS)
    kept = [key for key in "abcdef" if cache.get(key)]
    assert kept == list("abcdef")[: len(kept)] and 0 < len(kept) < 6
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1200
    ImageCache(tmp_path, 1200).put("g", ARRAYS)
    assert cache.get("g") is None


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ImageCache(tmp_path / "file", 1 << 20)
    cache.put("a", ARRAYS)
    assert cache.get("a") is None


@given(st.data())
def test_a_damaged_file_is_not_used(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        cache = ImageCache(folder, 1 << 20)
        cache.put("a", ARRAYS)
        (file,) = Path(folder).iterdir()
        content = bytearray(file.read_bytes())
        if data.draw(st.booleans()):
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        else:
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content)
        assert cache.get("a") is None


def test_the_environment_sets_folder_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENLOOM_IMAGE_CACHE", raising=False)
    assert ImageCache.from_environment() is None
    monkeypatch.setenv("TOKENLOOM_IMAGE_CACHE", str(tmp_path))
    monkeypatch.setenv("TOKENLOOM_IMAGE_CACHE_SIZE", "2GB")
    cache = ImageCache.from_environment()
    assert cache is not None and (cache.folder, cache.limit) == (tmp_path, 2_000_000_000)
    monkeypatch.setenv("TOKENLOOM_IMAGE_CACHE_SIZE", "many")
    with pytest.raises(ConfigError, match="TOKENLOOM_IMAGE_CACHE_SIZE"):
        ImageCache.from_environment()
