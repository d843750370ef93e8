"""`max_rows`, `fraction` and a file for each split: which rows they read, in all layouts of a source."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.agent_sessions import claude_code
from support.raw_rows import SUFFIXES, Row, read, write_table
from tokenloom.assets.building.build import Build
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.raw.sample import in_fraction
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.assets.stage.rejects import ROW, count_rejected
from tokenloom.config import DatasetConfig, PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.store import ArtifactStore

COUNT = 3000
ROWS = [{"a": f"row number {number} {'x' * (number % 40)}"} for number in range(COUNT)]
SMALL = ChunkSize(2000, 8000)


def nested(path: Path) -> Path:
    """Articles with three rows each."""
    articles = [{"title": f"t{start}", "rows": ROWS[start : start + 3]} for start in range(0, COUNT, 3)]
    target = path / "rows.json"
    target.write_text(json.dumps({"data": articles}))
    return target


def table(suffix: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        write_table(path / f"rows{suffix}", ROWS)
        return path / f"rows{suffix}"

    return write


def text(path: Path) -> Path:
    """Every third line is blank."""
    (path / "rows.txt").write_text("".join(f"{row['a']}\n{'' if n % 3 else '  '}\n" for n, row in enumerate(ROWS)))
    return path / "rows.txt"


def many_files(path: Path) -> Path:
    for start in range(0, COUNT, 20):
        lines = "".join(f"{json.dumps(row)}\n" for row in ROWS[start : start + 20])
        (path / f"part-{start:05d}.jsonl").write_text(lines)
    return path


def saved(path: Path) -> Path:
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(str(path / "saved"))
    return path / "saved"


LAYOUTS = {
    **{suffix: table(suffix) for suffix in SUFFIXES},
    "nested": nested,
    "text": text,
    "many files": many_files,
    "saved": saved,
}


@pytest.fixture(params=LAYOUTS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    """A source, and the values of its rows in order, as they are read without limits."""
    path = LAYOUTS[request.param](tmp_path)
    values = values_of(path)
    assert len(values) == COUNT
    return path, values


def values_of(path: Path, split: str = "train", **dataset: Any) -> list[str]:
    config = PipelineConfig(dataset=DatasetConfig(name=str(path), **dataset))
    found: list[str] = []
    for chunk in source_chunks(config, SMALL):
        if chunk.split == split:
            table = chunk.load().table
            found += table[
                "text" if "text" in table.column_names else "a" if "a" in table.column_names else "rows.a"
            ].to_pylist()
    return found


@pytest.mark.parametrize("rows", [1, 19, 20, 1000, 2999, 3000, 10**9])
def test_max_rows_are_the_first_rows(source: tuple[Path, list[str]], rows: int) -> None:
    path, values = source
    assert values_of(path, max_rows=rows) == values[:rows]


def test_a_fraction_depends_on_content_alone(source: tuple[Path, list[str]]) -> None:
    path, values = source
    half, third = values_of(path, fraction=0.5), values_of(path, fraction=0.3)
    assert half == [value for value in values if value in {*half}]
    assert {*third} < {*half}
    assert abs(len(half) / COUNT - 0.5) < 0.06 and abs(len(third) / COUNT - 0.3) < 0.06
    first = values_of(path, fraction=0.5, max_rows=1000)
    assert first == [value for value in values[:1000] if value in {*half}]


def test_a_fraction_of_each_part_of_a_validation_split(source: tuple[Path, list[str]]) -> None:
    path, _ = source
    whole = {split: values_of(path, split, val_split=0.2) for split in ("train", "validation")}
    half = {*values_of(path, fraction=0.5)}
    for split, values in whole.items():
        found = values_of(path, split, val_split=0.2, fraction=0.5)
        assert found == [value for value in values if value in half]
        assert abs(len(found) / len(values) - 0.5) < 0.12
    first = {split: values_of(path, split, val_split=0.2, max_rows=700) for split in whole}
    assert sum(map(len, first.values())) == 700
    assert all(first[split] == whole[split][: len(first[split])] for split in first)


def test_the_fraction_is_independent_of_the_order_of_hashes() -> None:
    """Every tenth of the range of hashes has the fraction: `val_split` takes the lowest, cuts take low ones."""
    hashes = np.random.default_rng(0).integers(0, 1 << 64, 1 << 20, np.uint64, endpoint=False)
    for fraction in (0.01, 0.25, 0.9):
        flags = in_fraction(hashes, fraction)
        tenths = (hashes >> np.uint64(60)).astype(int)
        shares = np.bincount(tenths, flags, 16) / np.bincount(tenths, minlength=16)
        assert np.abs(shares - fraction).max() < 6 * (fraction * (1 - fraction) / (1 << 16)) ** 0.5
    assert in_fraction(hashes, 0.9)[in_fraction(hashes, 0.25)].all()


def test_rejected_rows_count_among_the_first_and_in_the_fraction(tmp_path: Path) -> None:
    lines = [json.dumps(row) if number % 3 else f"{{broken {number}" for number, row in enumerate(ROWS)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(lines))
    rows, rejects, filtered = read(path, max_rows=100)
    assert rows == [row for number, row in enumerate(ROWS[:100]) if number % 3]
    assert [reject[ROW] for reject in rejects] == [2 * number for number in range(0, 100, 3)] and not filtered
    _, rejects, _ = read(path, fraction=0.5)
    assert abs(len(rejects) / 1000 - 0.5) < 0.1
    again = {reject["excerpt"] for reject in read(path, fraction=0.3)[1]}
    assert again < {reject["excerpt"] for reject in rejects}


def test_sessions_are_used_whole(tmp_path: Path) -> None:
    """A file is in the fraction, or among the first, with all of its rows and dropped branches."""
    made = [claude_code(seed) for seed in range(30)]
    for number, session in enumerate(made):
        (tmp_path / f"{number:02d}.jsonl").write_bytes(session.content)
    rows = [len(session.rows) for session in made]

    def read_sessions(**dataset: Any) -> tuple[list[int], int]:
        config = PipelineConfig(dataset=DatasetConfig(name=str(tmp_path), format="claude_code", **dataset))
        outputs = [chunk.load() for chunk in source_chunks(config)]
        for output in outputs:
            assert output.rows_in == output.table.num_rows + output.filtered + count_rejected(output.rejects)
            assert output.filtered == output.rejects.num_rows
        found = Counter(name for output in outputs for name in output.table["session"].to_pylist())
        return list(found.values()), sum(output.filtered for output in outputs)

    whole, dropped = read_sessions()
    assert sorted(whole) == sorted(rows) and dropped == sum(session.branches for session in made)
    assert read_sessions(max_rows=7)[0] == whole[:7]
    half, fewer = read_sessions(fraction=0.5)
    assert 5 < len(half) < 25 and 0 < fewer < dropped
    assert all(count in whole for count in half)


def test_appended_rows_change_nothing_after_max_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS[:1500]))
    declared = {
        "dataset": {"name": str(path), "max_rows": 1200},
        "tokenizer": {"train": {}, "special_tokens": {"eos": "</s>"}},
    }
    store, found = ArtifactStore(tmp_path / "store"), []
    for rows in (ROWS[:1500], ROWS, [{"a": "other"}, *ROWS]):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        build = Build(PipelineConfig.from_mapping(declared), store, chunk_size=SMALL)
        found.append({report.name: report for report in build.run_all("raw")}["raw"])
    assert found[1].digest == found[0].digest and found[1].chunks_reused == found[1].chunks
    assert found[2].rows_out == 1200 and found[2].chunks_reused >= found[2].chunks - 3


def split_rows(tmp_path: Path) -> tuple[list[Row], list[Row]]:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    write_table(tmp_path / "a" / "rows.jsonl", ROWS[:50])
    write_table(tmp_path / "b" / "rows.jsonl", ROWS[50:60])
    return ROWS[:50], ROWS[50:60]


@pytest.mark.parametrize("validation", ["b/rows.jsonl", "b", "b/*.jsonl"])
def test_each_split_has_its_own_files(tmp_path: Path, validation: str) -> None:
    first, second = split_rows(tmp_path)
    names = {"train": f"{tmp_path}/a/rows.jsonl", "validation": f"{tmp_path}/{validation}"}
    config = PipelineConfig.from_mapping({"dataset": {"name": names}})
    found: dict[str, list[Any]] = {}
    sources = set[str]()
    for chunk in source_chunks(config):
        found.setdefault(chunk.split, []).extend(chunk.load().table["a"].to_pylist())
        sources |= {run.source for run in chunk.runs}
    assert found == {"train": [row["a"] for row in first], "validation": [row["a"] for row in second]}
    assert len(sources) == 2


def test_names_of_splits_hide_credentials_and_can_be_pickled() -> None:
    import pickle

    names = {"train": "https://me:secret@host/a.jsonl", "validation": "b.jsonl"}
    name = PipelineConfig.from_mapping({"dataset": {"name": names}}).dataset.name
    assert "secret" not in name and "secret" not in repr(name)
    assert pickle.loads(pickle.dumps(name)).full == "train: https://me:secret@host/a.jsonl, validation: b.jsonl"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ({}, "names no split; write it like {train: a.jsonl, validation: b.jsonl}"),
        ({"train split": "a.jsonl"}, "'train split' is not a valid name of a split"),
        ({"train": ["a.jsonl"]}, "train: must be a file, a folder, a glob or a URL"),
        ({"train": ""}, "train: must be a file, a folder, a glob or a URL"),
        ({"train": "a/rows.jsonl", "validation": "a/rows.jsonl"}, "is in train and validation; name it once"),
        ({"train": "a/rows.jsonl", "validation": "c.jsonl"}, "no such file"),
        ({"train": "a/rows.jsonl", "validation": "."}, "has the splits train, test; name the files of one"),
        ({"train": "org/name"}, "is not a file or a folder of files"),
    ],
)
def test_wrong_splits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, message: str) -> None:
    split_rows(tmp_path)
    for split in ("train", "test"):
        write_table(tmp_path / f"{split}.jsonl", ROWS[:3])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        list(source_chunks(PipelineConfig.from_mapping({"dataset": {"name": name}})))
    assert message in str(error.value)
