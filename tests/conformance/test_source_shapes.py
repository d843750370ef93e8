"""Shapes in which sources hold the same rows: each is read as what it says, asked about, or rejected row by row.

The right values come from Python's `json` and `csv`, pandas and `datasets`, and from what ms-swift, LLaMA-Factory and
TRL document of their formats.
"""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.columns_stage import config_of, described
from support.raw_rows import chunks_of, read
from support.soak import pairs
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.stage.rejects import ROW
from tokenloom.errors import ConfigError

Row = dict[str, Any]
Found = tuple[dict[int, Row], dict[int, str]]
"""The canonical rows, conversations as (role, content), and the codes of rejects, by the row's number."""

ASKED = [f"What is {index} plus {index}?" for index in range(40)]
SAID = [f"It is {2 * index}." for index in range(40)]
BAD = [f"It is {2 * index + 1}!" for index in range(40)]
EVERY = list(zip(ASKED, SAID, BAD, strict=True))


def found_in(path: Path, **sections: Any) -> Found:
    """Return what the stages up to columns make of a file."""
    tables = [chunk.load() for chunk in chunks_of(path, **sections.get("dataset", {}))]
    mapping = resolve(config_of(**sections), described(*(one.table for one in tables)))
    kept: dict[int, Row] = {}
    codes: dict[int, str] = {}
    for one in tables:
        out = to_canonical(one.table, mapping)
        for row in out.table.to_pylist():
            kept[row[ROW]] = {name: _shown(row[name]) for name in row if name != ROW and row[name] not in (None, "")}
        for table in (one.rejects, out.rejects):
            codes |= {row[ROW]: row["code"] for row in table.to_pylist()}
    return kept, codes


def _shown(value: Any) -> Any:
    return [(turn["role"], turn["content"]) for turn in value] if isinstance(value, list) else value


def jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def talk(asked: str, said: str) -> list[Row]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]


def spoken(asked: str, said: str) -> list[tuple[str, str]]:
    return [("user", asked), ("assistant", said)]


# Binary columns: what Python's bytes.decode gives.


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(24)], ids=str)
def test_binary_columns_of_utf8_are_text(tmp_path: Path, kind: pa.DataType) -> None:
    asked = [text.ljust(24).encode() for text in ASKED]
    table = pa.table({"question": pa.array(asked, kind), "answer": [text.encode() for text in SAID]})
    path = tmp_path / "rows.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    kept, codes = found_in(path)
    expected = [{"prompt": a.decode(), "completion": s} for a, s in zip(asked, SAID, strict=True)]
    assert (list(kept.values()), codes) == (expected, {})


@pytest.mark.parametrize("position", [0, 3, 39])
def test_a_row_of_bytes_that_are_not_utf8_is_rejected_alone(tmp_path: Path, position: int) -> None:
    said = [text.encode() for text in SAID]
    said[position] = b"\xff\xfe"
    pq.write_table(pa.table({"question": ASKED, "answer": said}), tmp_path / "rows.parquet")
    messages = [talk(a, "") for a in ASKED]
    for turns, answer in zip(messages, said, strict=True):
        turns[1]["content"] = answer
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.binary())]))
    values = [[{"role": t["role"], "content": _bytes(t["content"])} for t in turns] for turns in messages]
    pq.write_table(pa.table({"messages": pa.array(values, kind)}), tmp_path / "talks.parquet")
    for name in ("rows", "talks"):
        kept, codes = found_in(tmp_path / f"{name}.parquet")
        assert codes == {position: "not_text"}
        assert [*kept] == [index for index in range(40) if index != position]
    assert kept[5] == {"messages": spoken(ASKED[5], SAID[5])}


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def test_a_binary_column_that_is_not_text_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ASKED, "answer": [b"\x89PNG\xff\x00"] * 40}), tmp_path / "rows.parquet")
    mapping = {"prompt": "question", "completion": "answer"}
    with pytest.raises(ConfigError, match="column answer is binary; completion needs text"):
        found_in(tmp_path / "rows.parquet", dataset={"column_mapping": mapping})


# Conversations that are not lists of {role, content}.

COLUMNS: dict[str, Callable[[str, str], Any]] = {
    "role, content": lambda a, s: {"role": ["user", "assistant"], "content": [a, s]},
    "from, value": lambda a, s: {"from": ["human", "gpt"], "value": [a, s]},
    **{
        f"{asked}, {said}": lambda a, s, pair=(asked, said): [{pair[0]: a, pair[1]: s}]
        for asked, said in [
            *(("human", "assistant"), ("human", "gpt"), ("user", "bot"), ("user", "assistant"), ("input", "output")),
            *(("prompt", "response"), ("instruction", "output"), ("question", "answer"), ("Human", "Assistant")),
        ]
    },
}


@pytest.mark.parametrize("written", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("shape", COLUMNS)
def test_conversations_of_other_shapes_are_read(tmp_path: Path, shape: str, written: str) -> None:
    if written == "csv" and shape.split(",")[0].lower() not in ("role", "from", "human", "user"):
        pytest.skip("JSON text of such pairs can be an answer too")
    values = [COLUMNS[shape](a, s) for a, s in zip(ASKED, SAID, strict=True)]
    path = tmp_path / f"rows.{written}"
    if written == "jsonl":
        jsonl(path, [{"conversations": value} for value in values])
    elif written == "parquet":
        pq.write_table(pa.table({"conversations": values}), path)
    else:
        pd.DataFrame({"conversations": map(json.dumps, values)}).to_csv(path, index=False)
    kept, codes = found_in(path)
    assert codes == {}
    assert [row["messages"] for row in kept.values()] == [spoken(a, s) for a, s in zip(ASKED, SAID, strict=True)]


def test_a_sequence_of_objects_of_datasets_is_a_conversation(tmp_path: Path) -> None:
    kind = {"role": datasets.Value("string"), "content": datasets.Value("string")}
    features = datasets.Features({"messages": datasets.Sequence(kind)})
    rows = {"messages": [COLUMNS["role, content"](a, s) for a, s in zip(ASKED, SAID, strict=True)]}
    made = datasets.Dataset.from_dict(rows, features=features)
    assert made[0]["messages"] == {"role": ["user", "assistant"], "content": [ASKED[0], SAID[0]]}
    made.to_parquet(str(tmp_path / "rows.parquet"))
    kept, _ = found_in(tmp_path / "rows.parquet")
    assert [row["messages"] for row in kept.values()] == [spoken(a, s) for a, s in zip(ASKED, SAID, strict=True)]


def test_lists_of_different_lengths_are_rejected_alone(tmp_path: Path) -> None:
    values = [{"role": ["user", "assistant"], "content": [a, s]} for a, s in zip(ASKED, SAID, strict=True)]
    values[7]["content"] = ["only one"]
    kept, codes = found_in(jsonl(tmp_path / "rows.jsonl", [{"messages": value} for value in values]))
    assert (len(kept), codes) == (39, {7: "not_messages"})


def test_fields_of_a_pair_belong_to_the_answer(tmp_path: Path) -> None:
    rows = [[{"system": "S", "human": a, "assistant": s}, {"human": "and?", "assistant": None}] for a, s, _ in EVERY]
    kept, codes = found_in(jsonl(tmp_path / "rows.jsonl", [{"conversation": row} for row in rows]))
    assert codes == {}
    assert kept[3]["messages"] == [("system", "S"), *spoken(ASKED[3], SAID[3]), ("user", "and?")]


@pytest.mark.parametrize("shape", ["texts", "pairs"])
def test_turns_without_speakers_are_asked_about_and_can_be_mapped(tmp_path: Path, shape: str) -> None:
    values = [[a, s] if shape == "texts" else [[a, s], [s, a]] for a, s, _ in EVERY]
    path = jsonl(tmp_path / "rows.jsonl", [{"id": index, "data": value} for index, value in enumerate(values)])
    with pytest.raises(ConfigError, match=r"in turn.*messages: .\{data:turns\}"):
        found_in(path)
    kept, codes = found_in(path, dataset={"column_mapping": {"messages": "{data:turns}"}})
    expected = [spoken(a, s) + (spoken(s, a) if shape == "pairs" else []) for a, s, _ in EVERY]
    assert ([row["messages"] for row in kept.values()], codes) == (expected, {})


@pytest.mark.parametrize("role", ["text", "system", "label"])
def test_turns_are_no_text(tmp_path: Path, role: str) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"data": [a, s], "q": a, "a": s} for a, s, _ in EVERY])
    others = {"text": {}, "system": {"prompt": "q", "completion": "a"}, "label": {"prompt": "q", "completion": "a"}}
    with pytest.raises(ConfigError, match="is a conversation"):
        found_in(path, dataset={"column_mapping": {role: "{data:turns}", **others[role]}})


# JSON: the rows that json.loads, and datasets where it reads the file, give.

OBJECTS = [{"question": a, "answer": s} for a, s in zip(ASKED[:4], SAID[:4], strict=True)]
LINES = [json.dumps(row) for row in OBJECTS]
LAYOUTS = {
    "array.jsonl": json.dumps(OBJECTS),
    "array_and_newline.jsonl": json.dumps(OBJECTS) + "\n",
    "indented_array.jsonl": json.dumps(OBJECTS, indent=2),
    "element_per_line.jsonl": "[\n" + ",\n".join(LINES) + "\n]\n",
    "array.ndjson": json.dumps(OBJECTS),
    "array.jsonl.gz": json.dumps(OBJECTS),
    "lines.json": "\n".join(LINES),
    "indented.json": "\n".join(json.dumps(row, indent=2) for row in OBJECTS),
    "indented.jsonl": "\n".join(json.dumps(row, indent=2) for row in OBJECTS),
    "in_a_row.json": "".join(LINES),
    "in_a_row.jsonl": "".join(LINES),
    "commas.json": ",\n".join(LINES),
    "commas.jsonl": ",\n".join(LINES) + ",\n",
    "within.json": json.dumps({"version": 1, "data": OBJECTS}),
}
NOT_OF_DATASETS = {"commas.json", "commas.jsonl", "within.json", "array.ndjson", "array.jsonl.gz"}


@pytest.mark.parametrize("name", LAYOUTS)
def test_json_of_either_layout_is_read_under_either_name(tmp_path: Path, name: str) -> None:
    data = LAYOUTS[name].encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read(tmp_path / name) == (OBJECTS, [], 0)
    if name not in NOT_OF_DATASETS:
        with tempfile.TemporaryDirectory() as cache:
            loaded = datasets.load_dataset("json", data_files=str(tmp_path / name), split="train", cache_dir=cache)
            assert loaded.to_list() == OBJECTS


def test_one_conversation_on_a_line_stays_one_row(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [talk(ASKED[0], SAID[0])])
    assert found_in(path)[0] == {0: {"messages": spoken(ASKED[0], SAID[0])}}


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_a_file_of_columns_is_asked_about(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps({"question": ASKED, "answer": SAID}))
    with pytest.raises(ConfigError, match=r"one object with a list for each column.*orient='records'"):
        found_in(tmp_path / name)


def test_rows_within_a_line_are_asked_about(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"data": OBJECTS}])
    with pytest.raises(ConfigError, match=r"set dataset.reader.root: data\[\]"):
        found_in(path)
    assert len(found_in(path, dataset={"reader": {"root": "data[]"}})[0]) == 4


# Labels: KTO's of TRL are booleans; 1 and -1 are those of the papers.

LABELS = [(1, -1), (1.0, -1.0), ("1", "-1"), ("+1", "-1"), (True, False), ("chosen", "rejected"), ("yes", "No"), (1, 0)]


@pytest.mark.parametrize("labels", LABELS, ids=str)
@pytest.mark.parametrize("shape", ["texts", "messages"])
def test_labels_say_which_answers_are_wanted(tmp_path: Path, labels: tuple[Any, Any], shape: str) -> None:
    wanted = [index % 3 == 0 for index in range(40)]
    rows = [
        ({"prompt": a, "completion": s} if shape == "texts" else {"messages": talk(a, s)}) | {"label": labels[not flag]}
        for (a, s, _), flag in zip(EVERY, wanted, strict=True)
    ]
    kept, codes = found_in(jsonl(tmp_path / "rows.jsonl", rows))
    assert codes == {}
    assert [(row["label"], row["completion"]) for row in kept.values()] == [
        (flag, [("assistant", s)]) for flag, s in zip(wanted, SAID, strict=True)
    ]


@pytest.mark.parametrize("labels", [(1, 0, -1), ("positive", "negative"), ("up", "down"), ("T", "F")], ids=str)
def test_labels_that_could_mean_something_else_are_asked_about(tmp_path: Path, labels: tuple[Any, ...]) -> None:
    rows = [
        {"prompt": a, "completion": s, "label": labels[index % len(labels)]} for index, (a, s, _) in enumerate(EVERY)
    ]
    path = jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigError, match=f"label: {labels[0]} would be read as wanted"):
        found_in(path)
    mapping = {name: name for name in ("prompt", "completion", "label")}
    kept, _ = found_in(path, dataset={"column_mapping": mapping})
    assert [row["label"] for row in kept.values()] == [row["label"] == labels[0] for row in rows]


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        (list(range(40)), ""),
        ([index / 4 for index in range(40)], ""),
        ([index % 2 == 0 for index in range(40)], "True and False"),
        ([pd.Timestamp(2024, 1, 1 + index % 28).to_pydatetime() for index in range(40)], "times would be written"),
    ],
    ids=["integers", "floats", "booleans", "times"],
)
def test_answers_of_other_types_are_pythons_text(tmp_path: Path, answers: list[Any], asked: str) -> None:
    pq.write_table(pa.table({"question": ASKED, "answer": answers}), tmp_path / "rows.parquet")
    if asked:
        with pytest.raises(ConfigError, match=f"{asked}.*completion: answer"):
            found_in(tmp_path / "rows.parquet")
    mapping = {"prompt": "question", "completion": "answer"} if asked else {}
    kept, _ = found_in(tmp_path / "rows.parquet", dataset={"column_mapping": mapping})
    assert [row["completion"] for row in kept.values()] == list(map(str, answers))


# Rejected answers: never trained, as ms-swift, LLaMA-Factory and TRL define the columns.

PAIRS: dict[str, Callable[[str, str, str], Row]] = {
    "messages, rejected_response": lambda a, s, b: {"messages": talk(a, s), "rejected_response": b},
    "messages, rejected_response as messages": lambda a, s, b: {
        "messages": talk(a, s),
        "rejected_response": talk(a, b)[1:],
    },
    "messages, rejected_messages": lambda a, s, b: {"messages": talk(a, s), "rejected_messages": talk(a, b)},
    "messages, rejected": lambda a, s, b: {"messages": talk(a, s), "rejected": b},
    "conversations, response_rejected": lambda a, s, b: {
        "conversations": [{"from": "human", "value": a}, {"from": "gpt", "value": s}],
        "response_rejected": b,
    },
    "query, response, rejected_response": lambda a, s, b: {"query": a, "response": s, "rejected_response": b},
    "instruction, output, rejected_output": lambda a, s, b: {"instruction": a, "output": s, "rejected_output": b},
    "question, answer, rejected": lambda a, s, b: {"question": a, "answer": s, "rejected": b},
    "prompt, chosen_response, rejected_response": lambda a, s, b: {
        "prompt": a,
        "chosen_response": s,
        "rejected_response": b,
    },
    "conversations, chosen, rejected": lambda a, s, b: {
        "conversations": [{"from": "human", "value": a}],
        "chosen": {"from": "gpt", "value": s},
        "rejected": {"from": "gpt", "value": b},
    },
    "chosen, rejected as columns": lambda a, s, b: {
        name: {"role": ["user", "assistant"], "content": [a, text]} for name, text in (("chosen", s), ("rejected", b))
    },
    "chosen, rejected as pairs": lambda a, s, b: {
        name: [{"human": a, "assistant": text}] for name, text in (("chosen", s), ("rejected", b))
    },
}


@pytest.mark.parametrize("shape", PAIRS)
def test_rejected_answers_make_pairs(tmp_path: Path, shape: str) -> None:
    kept, codes = found_in(jsonl(tmp_path / "rows.jsonl", [PAIRS[shape](*texts) for texts in EVERY]))
    assert codes == {}
    assert list(kept.values()) == [
        {"prompt": [("user", a)], "chosen": [("assistant", s)], "rejected": [("assistant", b)]} for a, s, b in EVERY
    ]


def test_a_rejected_answer_replaces_what_follows_the_last_user(tmp_path: Path) -> None:
    rows = [{"messages": [*talk("first", "one"), *talk(a, s)], "rejected_response": b} for a, s, b in EVERY]
    kept, _ = found_in(jsonl(tmp_path / "rows.jsonl", rows))
    assert kept[2]["prompt"] == [*spoken("first", "one"), ("user", ASKED[2])]
    assert (kept[2]["chosen"], kept[2]["rejected"]) == ([("assistant", SAID[2])], [("assistant", BAD[2])])


@pytest.mark.parametrize(
    "row",
    [
        lambda a, s, b: {"question": a, "answer": s, "rejected_answers": [b, b]},
        lambda a, s, b: {"text": f"{a} {s}", "rejected_text": f"{a} {b}"},
        lambda a, s, b: {"messages": talk(a, s), "rejected_response": b if a == ASKED[0] else None},
    ],
    ids=["lists", "texts", "mostly null"],
)
def test_rejected_answers_that_do_not_fit_are_asked_about(tmp_path: Path, row: Callable[..., Row]) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [row(*texts) for texts in EVERY])
    with pytest.raises(ConfigError, match=r"does not use 'rejected.*, which could hold unwanted answers") as caught:
        found_in(path)
    assert "completion: rejected" not in str(caught.value).split("write e.g.")[1]


# CSV: what Python's csv module reads with the same dialect.

QUOTED = ['Say "hi", then?', 'She said "yes"', "two\nlines", "C:\\dir", 'ends with "', "\\", 'a\\"b', "plain", "it's"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("declared", [False, True])
def test_backslash_escapes_are_read_as_python_reads_them(tmp_path: Path, newline: str, declared: bool) -> None:
    path = tmp_path / "rows.csv"
    options: dict[str, Any] = {"escapechar": "\\", "doublequote": False}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=newline, **options)
        writer.writerows([["question", "answer"], *([text, text[::-1]] for text in QUOTED * 3)])
    with path.open(newline="", encoding="utf-8") as file:
        expected = list(csv.DictReader(file, **options))
    assert read(path, reader={"escape": "backslash" if declared else "auto"}) == (expected, [], 0)
    assert expected == pd.read_csv(path, dtype=str, **options).to_dict("records")


def test_a_backslash_that_escapes_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('q,a\n"\\frac \\"x\\"","\\n"\n')
    assert read(tmp_path / "rows.csv")[0] == [{"q": '\\frac "x"', "a": "\\n"}]


def test_backslashes_of_regular_files_are_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('q,a\n"C:\\",b\n"say ""hi""\\",c\n')
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert read(tmp_path / "rows.csv") == (list(csv.DictReader(file)), [], 0)


def test_a_row_whose_quotes_would_be_lost_is_rejected_alone(tmp_path: Path) -> None:
    lines = [f'"{index}",b' for index in range(40)]
    lines[20] = '"a" b,c'
    (tmp_path / "rows.csv").write_text("q,a\n" + "\n".join(lines) + "\n")
    rows, rejects, _ = read(tmp_path / "rows.csv")
    assert len(rows) == 39
    assert [(reject["code"], reject["excerpt"]) for reject in rejects] == [("malformed_quotes", '"a" b,c')]
    assert read(tmp_path / "rows.csv", reader={"quote": "none"})[0][20] == {"q": '"a" b', "a": "c"}


@pytest.mark.parametrize(
    ("text", "reader", "options"),
    [
        ("q,a\n'x, y',z\n", {"quote": "'"}, {"quotechar": "'"}),
        ('q\ta\n"x y\tz\n', {"quote": "none", "delimiter": "\t"}, {"quoting": csv.QUOTE_NONE, "delimiter": "\t"}),
        ('q;a\n"x\r\ny";z\r\n', {}, {"delimiter": ";"}),
        ('\ufeff"q",a\nx,"y"\n', {}, {}),
        ("q|a\nx, y|z\n", {}, {"delimiter": "|"}),
    ],
    ids=["single quotes", "no quotes", "line breaks in quotes", "byte-order mark", "pipes"],
)
def test_dialects_are_read_as_python_reads_them(tmp_path: Path, text: str, reader: Row, options: Row) -> None:
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8", newline="")
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8-sig") as file:
        expected = list(csv.DictReader(file, **options))
    assert read(tmp_path / "rows.csv", reader=reader) == (expected, [], 0)


# One odd row among many: accepted or rejected alone, wherever it is.

ODD: dict[str, tuple[Any, str]] = {
    "JSON text": (json.dumps(talk("odd", "row")), ""),
    "columns": ({"role": ["user", "assistant"], "content": ["odd", "row"]}, ""),
    "pairs": ([{"human": "odd", "assistant": "row"}], ""),
    "bare string among messages": ([talk("odd", "row")[0], "row"], "not_messages"),
    "bare strings": (["odd", "row"], "not_messages"),
    "lists": ([["odd", "row"]], "not_messages"),
    "null": (None, "no_messages"),
    "empty": ([], "no_messages"),
    "text": ("odd row", "not_messages"),
    "Python's text": (str(talk("odd", "row")), "invalid_json"),
    "number": (7, "not_messages"),
    "true": (True, "not_messages"),
    "content null": ([talk("odd", "row")[0], {"role": "assistant", "content": None}], "missing_content"),
    "content object": ([talk("odd", "row")[0], {"role": "assistant", "content": {"a": 1}}], "not_text"),
}


@pytest.mark.parametrize(("shape", "position", "written"), pairs(ODD, [0, 2, 2999], ["jsonl", "json"]))
def test_one_odd_conversation_is_judged_alone(tmp_path: Path, shape: str, position: int, written: str) -> None:
    value, code = ODD[shape]
    rows: list[Row] = [{"messages": talk(f"q{index}", f"a{index}")} for index in range(3000)]
    rows[position]["messages"] = value
    path = tmp_path / f"rows.{written}"
    if written == "json":
        path.write_text(json.dumps(rows))
    kept, codes = found_in(path if written == "json" else jsonl(path, rows))
    assert codes == ({position: code} if code else {})
    expected = {index: spoken(f"q{index}", f"a{index}") for index in range(3000)} | {position: spoken("odd", "row")}
    assert {index: row["messages"] for index, row in kept.items()} == {
        index: turns for index, turns in expected.items() if index not in codes
    }


@pytest.mark.parametrize("value", [["x"], {"x": 1}, [{"text": "x"}], None], ids=str)
@pytest.mark.parametrize("position", [0, 2, 399])
def test_one_odd_answer_is_rejected_alone(tmp_path: Path, value: Any, position: int) -> None:
    rows = [{"question": f"What is {index}?", "answer": f"It is {index}."} for index in range(400)]
    rows[position]["answer"] = value
    kept, codes = found_in(jsonl(tmp_path / "rows.jsonl", rows))
    assert codes == {position: "empty_answer" if value is None else "not_text"}
    assert len(kept) == 399


@pytest.mark.parametrize("odd", ["maybe", "", ["x"]], ids=str)
@pytest.mark.parametrize("position", [0, 2, 399])
def test_one_odd_label_is_rejected_alone(tmp_path: Path, odd: Any, position: int) -> None:
    rows: list[Row] = [
        {"prompt": f"q{index}?", "completion": f"a{index}", "label": index % 3 == 0} for index in range(400)
    ]
    rows[position]["label"] = odd
    kept, codes = found_in(jsonl(tmp_path / "rows.jsonl", rows))
    assert codes == {position: "not_a_label"}
    assert [row["label"] for row in kept.values()] == [row["label"] for row in rows if row["label"] != odd]


def test_odd_values_are_counted(tmp_path: Path) -> None:
    rows: list[Row] = [{"messages": talk(a, s)} for a, s, _ in EVERY]
    rows[7] = {"messages": "text"}
    rows[9]["messages"].append("text")
    facts = described(*(chunk.load().table for chunk in chunks_of(jsonl(tmp_path / "rows.jsonl", rows))))
    assert {column["path"]: column["odd"] for column in facts if "odd" in column} == {
        "messages": {"text": 1},
        "messages[]": {"text": 1},
    }


@pytest.mark.parametrize("line", ['"text"', "7", "null", "[1]", json.dumps(talk("odd", "row")), "{", "[["])
@pytest.mark.parametrize("position", [0, 2, 399])
def test_one_odd_line_is_rejected_alone(tmp_path: Path, line: str, position: int) -> None:
    lines = [json.dumps({"messages": talk(f"q{index}", f"a{index}")}) for index in range(400)]
    lines[position] = line
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    kept, codes = found_in(tmp_path / "rows.jsonl")
    assert [*codes] == [position]
    assert len(kept) == 399


@pytest.mark.parametrize("text", ["plain", str(talk("odd", "row")), "", "[{", "5"])
@pytest.mark.parametrize("position", [0, 2, 39])
def test_one_odd_cell_is_rejected_alone(tmp_path: Path, text: str, position: int) -> None:
    cells = [json.dumps(talk(a, s)) for a, s in zip(ASKED, SAID, strict=True)]
    cells[position] = text
    pd.DataFrame({"messages": cells}).to_csv(tmp_path / "rows.csv", index=False)
    kept, codes = found_in(tmp_path / "rows.csv")
    assert ([*codes], len(kept)) == ([position], 39)
