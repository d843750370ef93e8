"""Compressed files as their own tools write them: read whole, or refused with the remedy."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest
import zstandard

from tokenloom.errors import SourceError
from tokenloom.resources.sources.source_file import SourceFile

ROWS = b"".join(b'{"text": "%d"}\n' % (number * 7919 % 100003) for number in range(1000))
HALF, REST = ROWS[:5000], ROWS[5000:]
ZSTD = zstandard.ZstdCompressor(write_checksum=True)
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


def zstd_with_window(log: int) -> bytes:
    """Compress as `zstd --long=<log>` does when it reads a pipe."""
    parameters = zstandard.ZstdCompressionParameters(window_log=log, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(ROWS) + compressor.flush()


def zstd_with_dictionary() -> bytes:
    trained = zstandard.train_dictionary(1024, [ROWS[at : at + 100] for at in range(0, len(ROWS), 50)])
    return zstandard.ZstdCompressor(dict_data=trained).compress(ROWS)


WHOLE = {
    "zstd, a window of 128 MiB": ("zst", zstd_with_window(27)),
    "zstd, several frames": ("zst", ZSTD.compress(HALF) + ZSTD.compress(REST)),
    "zstd, skippable frames": ("zst", SKIPPABLE + ZSTD.compress(HALF) + SKIPPABLE + ZSTD.compress(REST) + SKIPPABLE),
    "gzip, several members": ("gz", gzip.compress(HALF) + gzip.compress(REST)),
    "gzip, zeros at the end": ("gz", gzip.compress(ROWS) + bytes(512)),
    "bzip2, several streams": ("bz2", bz2.compress(HALF) + bz2.compress(REST)),
    "bzip2, an empty stream": ("bz2", bz2.compress(HALF) + bz2.compress(b"") + bz2.compress(REST)),
    "bzip2, zeros at the end": ("bz2", bz2.compress(ROWS) + bytes(512)),
    "xz, several streams": ("xz", lzma.compress(HALF) + lzma.compress(REST)),
    "xz, padding between streams": ("xz", lzma.compress(HALF) + bytes(8) + lzma.compress(REST) + bytes(4)),
    "xz, a large dictionary": (
        "xz",
        lzma.compress(ROWS, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 26}]),
    ),
    "xz, the format of lzma": ("xz", lzma.compress(ROWS, format=lzma.FORMAT_ALONE)),
}

LATER = "the data after the complete stream are damaged, or not compressed"
REFUSED = {
    "zstd, a window of 256 MiB": (
        "zst",
        zstd_with_window(28),
        "a window of more than 128 MiB (zstd --long=28 or more)",
    ),
    "zstd, a window of 2 GiB": ("zst", zstd_with_window(31), "compress it again: zstd -d --long=31 -c FILE | zstd"),
    "zstd, a dictionary": ("zst", zstd_with_dictionary(), "decompress it: zstd -d -D DICTIONARY FILE"),
    "zstd, other data": ("zst", gzip.compress(ROWS), "the data there are not zstd"),
    "zstd, other data at the end": ("zst", ZSTD.compress(ROWS) + b"more", "the data there are not zstd"),
    "zstd, a frame cut off": ("zst", ZSTD.compress(HALF) + ZSTD.compress(REST)[:-9], "Truncated"),
    "gzip, other data at the end": ("gz", gzip.compress(ROWS) + b"more", "Not a gzipped file"),
    "gzip, a member cut off": ("gz", gzip.compress(HALF) + gzip.compress(REST)[:-9], "ended before"),
    "bzip2, other data at the end": ("bz2", bz2.compress(ROWS) + b"more", LATER),
    "bzip2, a damaged second stream": ("bz2", bz2.compress(HALF) + b"BZh9" + bytes(40), LATER),
    "bzip2, a third stream": ("bz2", 2 * bz2.compress(HALF) + b"BZh9" + bytes(40), "after the complete 2 streams"),
    "bzip2, a stream cut off": ("bz2", bz2.compress(HALF) + bz2.compress(REST)[:-9], "ended before"),
    "xz, other data at the end": ("xz", lzma.compress(ROWS) + b"more and more", LATER),
    "xz, a damaged second stream": ("xz", lzma.compress(HALF) + lzma.compress(REST)[1:], LATER),
    "xz, a stream cut off": ("xz", lzma.compress(HALF) + lzma.compress(REST)[:-9], "ended before"),
}


def decompressed(folder: Path, suffix: str, content: bytes, size: int) -> bytes:
    path = folder / f"rows.jsonl.{suffix}"
    path.write_bytes(content)
    return b"".join(SourceFile(str(path), path.name, "jsonl").blocks(size))


@pytest.mark.parametrize("size", [100, 1 << 22])
@pytest.mark.parametrize("case", WHOLE)
def test_a_compressed_file_is_read_whole(case: str, size: int, tmp_path: Path) -> None:
    assert decompressed(tmp_path, *WHOLE[case], size) == ROWS


@pytest.mark.parametrize("case", REFUSED)
def test_a_compressed_file_that_is_not_read_whole_is_refused(case: str, tmp_path: Path) -> None:
    suffix, content, message = REFUSED[case]
    with pytest.raises(SourceError) as caught:
        decompressed(tmp_path, suffix, content, 1 << 22)
    assert str(caught.value).startswith(f"rows.jsonl.{suffix}: cannot be read")
    assert message in str(caught.value)
