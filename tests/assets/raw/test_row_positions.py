"""The position of each row and each reject in its file."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from support.raw_rows import chunks_of, places, write_table


@pytest.mark.parametrize("val_split", [0.0, 0.3])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_every_row_and_reject_has_its_line_number(tmp_path: Path, ending: str, val_split: float) -> None:
    noise = random.Random(4)
    values = [f"{index}" + noise.choice(["", "\nand more", '\n\n""quoted""']) for index in range(200)]
    records = [
        noise.choice(["", ending]) + (f'"{value}",x' if index % 9 else f"{index},x,y")
        for index, value in enumerate(values)
    ]
    path = tmp_path / "rows.csv"
    path.write_bytes(ending.join(["a,b", *records]).encode())
    lines = path.read_bytes().decode().replace(ending, "\n").split("\n")
    found = places(path, tmp_path / "store", val_split=val_split)
    assert len(found) == 200
    for value, place in found.items():
        name, _, line = place.rpartition(":")
        assert name == "rows.csv"
        assert lines[int(line) - 1].lstrip('"').split("\n")[0].startswith(value.split("\n")[0].split('"')[0])
        assert re.match(rf'"?{value.splitlines()[0].split(",")[0]}\b', lines[int(line) - 1])


def test_rows_of_all_formats_have_positions(tmp_path: Path) -> None:
    rows = [{"a": f"row number {index}"} for index in range(100)]
    for suffix in (".json", ".jsonl", ".parquet"):
        write_table(tmp_path / f"rows{suffix}", rows)
        found = places(tmp_path / f"rows{suffix}", tmp_path / "store")
        mark, first = (":", 1) if suffix == ".jsonl" else (" row ", 0)
        assert found == {row["a"]: f"rows{suffix}{mark}{first + index}" for index, row in enumerate(rows)}


def test_rows_within_records_have_no_position_but_their_file(tmp_path: Path) -> None:
    """The position is -1, which docs/internals/format.md defines as unknown."""
    (tmp_path / "rows.json").write_text(json.dumps({"data": [{"rows": [{"a": "x"}, {"a": "y"}]}]}))
    assert [chunk.runs for chunk in chunks_of(tmp_path / "rows.json")] == [(("rows.json", 0, -1),)]
    assert places(tmp_path / "rows.json", tmp_path / "store") == {"x": "rows.json", "y": "rows.json"}
