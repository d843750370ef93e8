"""A changed file is cut like a new one, whatever an earlier build recorded about it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from support.changed_files import Remembered, changes, described
from support.soak import some
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.raw.formats import record_boundaries
from tokenloom.assets.raw.unchanged import UnchangedFiles
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import DatasetConfig, PipelineConfig

SIZE = ChunkSize(2_000, 8_000)


def json_line(pick: random.Random) -> bytes:
    return b'{"text": "%s"}\n' % (b"x%d " % pick.randrange(10**6) * pick.randrange(1, 30))


def csv_line(pick: random.Random) -> bytes:
    return b'%d,"said ""%d"",\nand %s"\r\n' % (pick.randrange(10**6), pick.randrange(99), b"so " * pick.randrange(40))


def text_line(pick: random.Random) -> bytes:
    return "é{} {}\n".format(pick.randrange(10**6), "so " * pick.randrange(40)).encode()


def paragraph(pick: random.Random) -> bytes:
    return text_line(pick) * pick.randrange(1, 4) + b"\n" * pick.randrange(1, 3)


FORMATS: dict[str, tuple[str, bytes, Callable[[random.Random], bytes], dict[str, object]]] = {
    "jsonl": ("a.jsonl", b"", json_line, {}),
    "jsonl-marked": ("a.jsonl", b"\xef\xbb\xbf", json_line, {}),
    "jsonl-parts": ("a.jsonl", b"", json_line, {"val_split": 0.2}),
    "csv": ("a.csv", b"\n\nid,said\r\n", csv_line, {}),
    "text": ("a.txt", b"", text_line, {}),
    "paragraphs": ("a.txt", b"\n", paragraph, {"reader": {"lines_per_row": "paragraph"}}),
    "repetitive": ("a.jsonl", b"", lambda pick: b'{"text": "%s"}\n' % (b"the same each time " * 6), {}),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", some(range(2), 2))
def test_a_changed_file_is_cut_as_if_it_were_new(
    format: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = random.Random(f"{format} {seed}")
    name, head, line, settings = FORMATS[format]
    path = tmp_path / name
    config = PipelineConfig(dataset=DatasetConfig.model_validate({"name": str(path), **settings}))
    hashed: list[int] = []
    hash_records = record_boundaries.hash_records
    monkeypatch.setattr(
        record_boundaries, "hash_records", lambda data, *at: hashed.append(len(data)) or hash_records(data, *at)
    )
    lines = [line(pick) for _ in range(400)]
    for what, changed in changes(lines, lambda: line(pick), pick):
        unchanged = UnchangedFiles(Remembered(), lambda digest: True)
        path.write_bytes(head + b"".join(lines))
        list(source_chunks(config, SIZE, unchanged=unchanged))
        path.write_bytes(head + b"".join(changed))
        hashed.clear()
        chunks = list(source_chunks(config, SIZE, unchanged=unchanged))
        partly = sum(hashed)
        hashed.clear()
        from_scratch = list(source_chunks(config, SIZE))
        assert described(chunks) == described(from_scratch), what
        if what in ("nothing", "appended", "its end lost"):
            assert partly < sum(hashed)
