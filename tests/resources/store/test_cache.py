"""The local cache of objects: within its size limit, always correct, and safe for concurrent processes."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import PIPE

import pyarrow as pa
import pytest
from blake3 import blake3

from support.processes import next_line, started
from tokenloom.errors import ConfigError, StoreError
from tokenloom.resources.store.blobs.file_cache import STALE_SECONDS, FileCache, parse_size


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


def cached_sizes(cache: FileCache) -> dict[str, int]:
    """Sizes of the objects on disk, by digest."""
    return {path.stem: path.stat().st_size for path in cache.root.glob("objects/*/*")}


def age(path: Path, seconds: int) -> None:
    """Set the time of the last use to this many seconds ago."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns - seconds * 10**9, found.st_mtime_ns))


@pytest.mark.parametrize(
    ("text", "size"),
    [("50GB", 50 * 10**9), ("1.5 TB", 1500 * 10**9), ("512MiB", 512 << 20), ("7", 7), ("9kb", 9000), ("2G", 2 * 10**9)],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "5XB", "GB", "1e9"])
def test_a_malformed_size_is_reported_with_its_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)
    monkeypatch.setenv("TOKENLOOM_CACHE_SIZE", text or " ")
    with pytest.raises(ConfigError, match="TOKENLOOM_CACHE_SIZE"):
        FileCache.from_environment()


def test_the_environment_sets_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOKENLOOM_CACHE_SIZE", raising=False)
    monkeypatch.delenv("TOKENLOOM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert FileCache.from_environment().root == tmp_path / ".cache" / "tokenloom"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert FileCache.from_environment().root == tmp_path / "xdg" / "tokenloom"
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("TOKENLOOM_CACHE_SIZE", "3kB")
    found = FileCache.from_environment()
    assert (found.root, found.limit) == (tmp_path / "own", 3000)


def test_the_least_recently_used_objects_are_evicted(tmp_path: Path) -> None:
    draw, cache = random.Random(1), FileCache(tmp_path, 100_000)
    used: list[str] = []
    for number in range(200):
        if used and draw.random() < 0.5:
            digest = draw.choice(used)
            if cache.find(digest) is None:
                continue
        else:
            data = draw.randbytes(draw.randint(1, 10_000))
            digest = digest_of(data)
            cache.add(digest, data)
        for path in tmp_path.glob("objects/*/*"):
            age(path, 10)
        cache.find(digest)
        used = [recent for recent in used if recent != digest] + [digest]
        cached = cached_sizes(cache)
        assert sum(cached.values()) <= 100_000, number
        assert [recent for recent in used if recent in cached] == used[len(used) - len(cached) :], number
    assert 0 < len(cached_sizes(cache)) < len(used)


def test_an_object_larger_than_the_limit_is_kept_alone(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000)
    for data in (b"a" * 900, b"b" * 5000, b"c" * 6000):
        assert cache.add(digest_of(data), data).read_bytes() == data
    assert list(cached_sizes(cache)) == [digest_of(b"c" * 6000)]


@pytest.mark.parametrize("damage", [b"", b"short", b"X" * 1000, b"longer" * 1000])
def test_a_damaged_file_is_a_miss(tmp_path: Path, damage: bytes) -> None:
    data = b"a" * 1000
    cache = FileCache(tmp_path, 10_000)
    path = cache.add(digest_of(data), data)
    assert cache.find(digest_of(data)) == path
    path.write_bytes(damage)
    os.utime(path)  # after a tick of the file system's clock
    for opened in (cache, FileCache(tmp_path, 10_000)):
        assert opened.find(digest_of(data)) is None
    assert not path.exists()


def test_a_mapped_object_stays_readable_after_eviction(tmp_path: Path) -> None:
    cache, data = FileCache(tmp_path, 1000), random.randbytes(900)
    mapped = pa.memory_map(str(cache.add(digest_of(data), data)))
    cache.add(digest_of(b"b" * 900), b"b" * 900)
    assert cache.find(digest_of(data)) is None
    assert mapped.read() == data


def test_named_blobs_are_separate_per_store_and_replaced(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 10)
    one, two = (cache.put_named(place, "tokenizers/ab/a.json", place.encode()) for place in ("s3://a/b", "s3://a/c"))
    assert (one.read_bytes(), two.read_bytes()) == (b"s3://a/b", b"s3://a/c")
    assert cache.put_named("s3://a/b", "tokenizers/ab/a.json", b"new").read_bytes() == b"new" == one.read_bytes()


def test_half_written_files_are_deleted_after_a_day(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    for name in ("old", "young"):
        (tmp_path / "scratch" / name).write_bytes(b"half")
    age(tmp_path / "scratch" / "old", STALE_SECONDS + 60)
    FileCache(tmp_path, 10).add(digest_of(b"a"), b"a")
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["young"]


def test_processes_that_share_a_small_cache_read_correct_bytes(tmp_path: Path) -> None:
    contents = {digest_of(data): data for data in (random.randbytes(1000 * number) for number in range(1, 20))}
    wrong: list[str] = []
    found: list[str] = []

    def read(seed: int) -> None:
        draw, cache = random.Random(seed), FileCache(tmp_path, 60_000)
        for _ in range(150):
            digest = draw.choice(list(contents))
            path = cache.find(digest)
            try:
                data = (path or cache.add(digest, contents[digest])).read_bytes()
            except FileNotFoundError:  # evicted by another process
                continue
            (found if data == contents[digest] else wrong).append(digest)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(found) > 100
    assert not list((tmp_path / "scratch").iterdir())


def test_an_object_is_downloaded_by_one_at_a_time(tmp_path: Path) -> None:
    contents = {digest_of(data): data for data in (random.randbytes(1000) for _ in range(20))}
    downloaded: list[str] = []

    def read(seed: int) -> list[bool]:
        cache, order = FileCache(tmp_path, 10**6), random.Random(seed).sample(list(contents), 20)

        def download(digest: str) -> bytes:
            downloaded.append(digest)
            time.sleep(0.001)
            return contents[digest]

        paths = {digest: cache.obtain(digest, partial(download, digest)) for digest in order}
        return [path is not None and path.read_bytes() == contents[digest] for digest, path in paths.items()]

    with ThreadPoolExecutor(8) as pool:
        assert all(map(all, pool.map(read, range(8))))
    assert sorted(downloaded) == sorted(contents)
    assert not list((tmp_path / "scratch").iterdir())


def test_nobody_waits_for_a_killed_download(tmp_path: Path) -> None:
    cache, digest = FileCache(tmp_path, 1000), digest_of(b"a")
    code = f"""
import time
from pathlib import Path
from tokenloom.resources.store.blobs.file_cache import FileCache
FileCache(Path({str(tmp_path)!r}), 9).obtain({digest!r}, lambda: print("locked", flush=True) or time.sleep(600))
"""
    with started([sys.executable, "-c", code], stdout=PIPE) as other:
        assert next_line(other) == "locked\n"
        assert cache.obtain(digest, lambda: b"a", wait=False) is None
    path = cache.obtain(digest, lambda: b"a")
    assert path and path.read_bytes() == b"a"


def test_a_failed_download_is_tried_again(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise FileNotFoundError

    cache = FileCache(tmp_path, 1000)
    with pytest.raises(FileNotFoundError):
        cache.obtain(digest_of(b"a"), fail)
    assert cache.obtain(digest_of(b"a"), lambda: b"a", wait=False)


def test_a_cache_that_cannot_be_written_is_reported_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match="TOKENLOOM_CACHE"):
        FileCache(tmp_path / "file", 10).add(digest_of(b"a"), b"a")
