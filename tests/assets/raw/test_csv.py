"""Delimited text: quoting, headers, delimiters and malformed records."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.raw_rows import Row, places, read, read_split
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.errors import SourceError


@pytest.mark.parametrize("header", ["h", "h,i", "h\ti"])
@given(text=st.text(st.sampled_from('ab",\t\r\n'), max_size=40))
@example(text="a\n\na,b,c\n")
def test_quoted_csv_is_read_the_same_in_chunks_of_any_size(header: str, text: str) -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("rows.tsv" if "\t" in header else "rows.csv")
        path.write_bytes(f"{header}\r\n{text}".encode())
        for size in (ChunkSize(), ChunkSize(4, 8)):
            for share in (0.0, 0.5):
                try:
                    rows, rejects, _ = read(path, size, val_split=share)
                    found.append((Counter(map(str, rows)), Counter(reject["excerpt"] for reject in rejects)))
                except SourceError:
                    found.append(None)
    assert [other for other in found if other != found[0]] == []


@pytest.mark.parametrize("blank", ["\n", "\n\n  \n", "\r\n"])
def test_blank_lines_before_a_header_are_skipped(tmp_path: Path, blank: str) -> None:
    (tmp_path / "rows.csv").write_bytes((blank + "a;b\n1;2\n").encode())
    assert read(tmp_path / "rows.csv") == ([{"a": "1", "b": "2"}], [], 0)
    assert list(places(tmp_path / "rows.csv", tmp_path / "store").values()) == [f"rows.csv:{blank.count(chr(10)) + 2}"]


@pytest.mark.parametrize("blank", ["", "\n"])
def test_csv_records_with_a_wrong_number_of_fields_are_rejected(tmp_path: Path, blank: str) -> None:
    text = f'a,b\n1,2\n3\n{blank}4,5,6\n"7\n8",9\n10,11\n'
    (tmp_path / "rows.csv").write_text(text)
    rows, rejects, _ = read(tmp_path / "rows.csv")
    assert rows == [{"a": "1", "b": "2"}, {"a": "7\n8", "b": "9"}, {"a": "10", "b": "11"}]
    assert [(reject["code"], reject["excerpt"]) for reject in rejects] == [
        ("wrong_field_count", text) for text in ("3", "4,5,6")
    ]


def test_quotes_inside_unquoted_fields_are_text(tmp_path: Path) -> None:
    lines = [f'{index}\ta 5" pipe and {index}' for index in range(60)]
    (tmp_path / "rows.tsv").write_text("\n".join(["id\ttext", *lines]) + "\n")
    expected = [dict(zip(("id", "text"), line.split("\t"), strict=True)) for line in lines]
    assert read(tmp_path / "rows.tsv")[0] == expected
    both = [read_split(tmp_path / "rows.tsv", split, val_split=0.3) for split in ("train", "validation")]
    assert sorted(row["text"] for rows in both for row in rows) == sorted(row["text"] for row in expected)


def test_blank_csv_lines_move_no_row_to_another_split(tmp_path: Path) -> None:
    lines = [f"row {index},{index}" for index in range(400)]
    found = []
    for text in ("\n".join(lines), "\n".join(line + "\n" * (index % 3) for index, line in enumerate(lines))):
        (tmp_path / "rows.csv").write_text("a,b\n" + text + "\n")
        found.append(read_split(tmp_path / "rows.csv", "validation", val_split=0.5))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("name,age\nx,1\n", ["name", "age"]),
        ("x,1\ny,2\n", ["column_0", "column_1"]),
        ("who wrote this long sentence and why did they do so?,maybe\nb,c\n", ["column_0", "column_1"]),
        ("a;b\n1;2\n", ["a", "b"]),
        ("a|b,c\n", ["a|b", "c"]),
        ("a,a\n1,2\n", ["column_0", "column_1"]),
        (",7,x\n,8,y\n", ["column_0", "column_1", "column_2"]),
    ],
)
def test_headers_and_delimiters_are_detected(tmp_path: Path, text: str, columns: list[str]) -> None:
    (tmp_path / "rows.csv").write_text(text * 2 if columns == ["a|b", "c"] else text)
    assert list(read(tmp_path / "rows.csv")[0][0]) == columns


def test_a_declared_header_wins_over_detection(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n")
    assert read(tmp_path / "rows.csv", reader={"header": True})[0] == [{"1": "3", "2": "4"}]
    (tmp_path / "rows.csv").write_text("a,b\n3,4\n")
    assert len(read(tmp_path / "rows.csv", reader={"header": False})[0]) == 2


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (
            ",question,answer\n0,What is it?,It is.\n",
            [{"column_0": "0", "question": "What is it?", "answer": "It is."}],
        ),
        ('"a,b";"c"\n1;2\n', [{"a,b": "1", "c": "2"}]),
        ("a;b\r1,5;2\r", [{"a": "1,5", "b": "2"}]),
    ],
)
def test_common_csv_irregularities_are_read(tmp_path: Path, text: str, rows: list[Row]) -> None:
    (tmp_path / "rows.csv").write_bytes(text.encode())
    assert read(tmp_path / "rows.csv") == (rows, [], 0)
