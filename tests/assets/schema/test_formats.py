"""Formats of rows: real datasets, usual columns, and what contradicts a format."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tokenloom.assets.schema.candidates import Ambiguity, FormatCandidate, choose
from tokenloom.assets.schema.formats import format_candidates
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch

Row = dict[str, Any]

MANY = [f"Some words here, number {index}." for index in range(40)]


def described(*tables: pa.Table) -> list[Row]:
    return merge([sketch(table) for table in tables])


def json_rows(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def read(folder: Path, name: str) -> pa.Table:
    """Return a real file as the raw stage reads it, in one chunk."""
    path = folder / name
    if path.suffix in (".csv", ".tsv"):
        comma, headed = path.suffix == ".csv", "mgsm" not in name and "wellformed" not in name
        encoding = "latin-1" if "latin1" in name else "utf-8-sig"
        with path.open(encoding=encoding, newline="") as file:
            quoting = csv.QUOTE_MINIMAL if comma else csv.QUOTE_NONE
            rows = list(csv.reader(file, delimiter="," if comma else "\t", quoting=quoting))
        names = rows.pop(0) if headed else [f"column_{index}" for index in range(len(rows[0]))]
        return pa.table({name: [row[index] for row in rows] for index, name in enumerate(names)})
    if path.suffix == ".txt":
        return pa.table({"text": [line for line in path.read_text().splitlines() if line.strip()]})
    rows: Any = json_rows(path)
    if "disfl" in name:
        rows = [{"key": key, **row} for key, row in rows.items()]
    if "xquad" in name:
        paragraphs = [paragraph for article in rows["data"] for paragraph in article["paragraphs"]]
        rows = [{"context": paragraph["context"], **asked} for paragraph in paragraphs for asked in paragraph["qas"]]
    if "barelist" in name:
        rows = [{"items": row} for row in rows]
    return pa.Table.from_pylist(rows[:3000])


SURE: dict[str, tuple[str, dict[str, str]]] = {
    "instruct/alpaca_data.json": ("alpaca", {"prompt": "instruction", "context": "input", "completion": "output"}),
    "multilingual/alpaca_zh_demo.json": (
        "alpaca",
        {"prompt": "instruction", "context": "input", "completion": "output"},
    ),
    "instruct/alpaca_seed_tasks.jsonl": (
        "alpaca",
        {"prompt": "instruction", "context": "instances[0].input", "completion": "instances[0].output"},
    ),
    "math/gsm8k_train.jsonl": ("question/answer", {"prompt": "question", "completion": "answer"}),
    "awkward/dialogsum_dev.jsonl": ("dialogue summary", {"prompt": "dialogue", "completion": "summary"}),
    "awkward/TruthfulQA_bom.csv": ("question/answer", {"prompt": "Question", "completion": "Best Answer"}),
    "awkward/banking77_test.csv": ("classification", {"prompt": "text", "completion": "category"}),
    "multilingual/mgsm_bn.tsv": ("question/answer", {"prompt": "column_0", "completion": "column_1"}),
    "multilingual/xquad.ar.json": (
        "reading comprehension",
        {"prompt": "question", "context": "context", "completion": "answers[0].text"},
    ),
    "chat/dummy_conversation.json": ("ShareGPT", {"messages": "conversations"}),
    "chat/glaive_toolcall_en_demo.json": ("ShareGPT", {"messages": "conversations", "tools": "tools"}),
    "chat/toy_chat_fine_tuning.jsonl": ("OpenAI messages", {"messages": "messages"}),
    "chat/openai_sft_barelist.jsonl": ("OpenAI messages", {"messages": "items"}),
    "preference/hh-rlhf_harmless-base_test.jsonl.gz": ("preference", {"chosen": "chosen", "rejected": "rejected"}),
    "preference/v1_dpo_demo.jsonl": (
        "preference",
        {"chosen": "chosen_messages", "rejected": "rejected_messages"},
    ),
    "text/wikitext-2/test.txt": ("plain text", {"text": "text"}),
}
UNSURE = [
    "awkward/disfl_qa_dev.json",
    "awkward/gap_validation.tsv",
    "awkward/avengers_latin1.csv",
    "awkward/query_wellformedness_dev.tsv",
    "multilingual/gemoji.json",
]


@pytest.mark.parametrize("name", SURE)
def test_real_datasets_have_the_right_format(real_data: Path, name: str) -> None:
    found = choose(format_candidates(described(read(real_data, name))))
    assert isinstance(found, FormatCandidate), str(found)
    assert (found.format, found.roles) == SURE[name]
    assert all(any(reason.startswith(f"{role}: ") for reason in found.evidence) for role in found.roles)


@pytest.mark.parametrize("name", UNSURE)
def test_datasets_without_a_certain_format_are_not_guessed(real_data: Path, name: str) -> None:
    assert isinstance(choose(format_candidates(described(read(real_data, name)))), Ambiguity)


@pytest.mark.parametrize("name", [*SURE, *UNSURE])
def test_a_few_more_rows_do_not_change_the_format(real_data: Path, name: str) -> None:
    table = read(real_data, name)
    if table.num_rows < 100:
        pytest.skip("a few rows are a large fraction of so small a file")
    odd = pa.Table.from_pylist([dict.fromkeys(table.column_names)] * 2, table.schema)
    texts = {
        name: "https://x.org/?" if pa.types.is_string(table.schema.field(name).type) else None
        for name in odd.schema.names
    }
    odd = pa.concat_tables([odd, pa.Table.from_pylist([texts], table.schema)])
    before, after = (
        choose(format_candidates(merge([sketch(part) for part in tables]))) for tables in ([table], [table, odd])
    )
    if isinstance(before, FormatCandidate):
        assert isinstance(after, FormatCandidate)
        assert (after.format, after.roles) == (before.format, before.roles)
        assert abs(after.confidence - before.confidence) < 0.05
    else:
        assert isinstance(after, Ambiguity)


GENERIC: list[tuple[dict[str, list[Any]], tuple[str, dict[str, str]] | None]] = [
    (
        {"prompt": MANY, "chosen": MANY, "rejected": MANY[::-1]},
        ("preference", {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}),
    ),
    (
        {"prompt": MANY, "completion": MANY, "label": [True, False] * 20},
        ("kto", {"prompt": "prompt", "completion": "completion", "label": "label"}),
    ),
    (
        {"question": MANY, "choices": [["x", "y"]] * 40, "answer": [0, 1] * 20, "subject": ["s"] * 40},
        ("completion", {"prompt": "{question}\n\n{choices:letters}", "completion": "choices[{answer}]"}),
    ),
    (
        {"question": MANY, "choices": [{"text": ["x"], "label": ["A"]}] * 40, "answerKey": ["A"] * 40},
        (
            "completion",
            {
                "prompt": "{question}\n\n{choices.text:letters}",
                "completion": "choices.text[choices.label={answerKey}]",
            },
        ),
    ),
    (
        {"id": MANY, "question": MANY, "context": MANY, "answers": [{"text": ["a"], "answer_start": [1]}] * 40},
        ("completion", {"prompt": "question", "context": "context", "completion": "answers.text[0]"}),
    ),
    (
        {"system_prompt": MANY, "question": MANY, "response": MANY},
        ("completion", {"prompt": "question", "system": "system_prompt", "completion": "response"}),
    ),
    ({"prompt": MANY, "response_a": MANY, "response_b": MANY}, None),
    ({"title": MANY, "score": MANY}, None),
    ({"source": MANY, "target": MANY}, None),
    ({"question": MANY, "choice_a": MANY, "choice_b": MANY, "answer": ["A", "B"] * 20}, None),
    ({"sentence": MANY, "label": [0, 1] * 20}, None),
    ({"question": MANY, "A": MANY, "B": MANY, "answer": ["A", "B"] * 20}, None),
    ({"prompt": MANY, "answer": ["A", "B"] * 20}, ("completion", {"prompt": "prompt", "completion": "answer"})),
    ({"question": MANY, "answer": ["12", "7", "350", "9"] * 10, "solution": MANY}, None),
    ({"text": MANY, "label": ["good", "bad"] * 20}, ("completion", {"prompt": "text", "completion": "label"})),
    ({"url": MANY, "title": MANY, "text": MANY}, ("text", {"text": "text"})),
]


@pytest.mark.parametrize(("columns", "expected"), GENERIC)
def test_usual_columns_have_their_usual_format(
    columns: dict[str, list[Any]], expected: tuple[str, dict[str, str]] | None
) -> None:
    found = choose(format_candidates(described(pa.table(columns))))
    if expected is None:
        assert isinstance(found, Ambiguity)
    else:
        assert isinstance(found, FormatCandidate)
        assert (found.form, found.roles) == expected


def test_close_candidates_are_listed() -> None:
    found = choose(format_candidates(described(pa.table({"prompt": MANY, "response_a": MANY, "response_b": MANY}))))
    assert isinstance(found, Ambiguity)
    assert {reading.roles["completion"] for reading in found.close} == {"response_a", "response_b"}
    assert "response_a" in str(found) and "response_b" in str(found)


def said(*roles: str) -> list[Row]:
    return [{"role": role, "content": f"{role} says"} for role in roles]


SPANS = [{"text": ["a", "b"], "answer_start": [1, 2]}]
DOUBTED: dict[str, tuple[dict[str, list[Any]], str, str]] = {
    "speakers by name": ({"dialog": [said("Alice", "Bob")] * 40}, "messages", "not known: Alice, Bob"),
    "many speakers": ({"messages": [said(f"S{n}") for n in range(40)]}, "messages", "not known"),
    "speakers by number": ({"messages": [[{"role": 0, "content": "x"}]] * 40}, "messages", "not known: 0"),
    "some unknown speakers": (
        {"messages": [said("user", "assistant")] * 90 + [said("user", "narrator")] * 10},
        "messages",
        "not known: narrator",
    ),
    "empty answers": (
        {"question": MANY, "context": MANY, "answers": [*SPANS * 26, *[{"text": [], "answer_start": []}] * 14]},
        "completion",
        "35% of rows have nothing there",
    ),
    "null answers": ({"question": MANY, "answer": [*MANY[:30], *[None] * 10]}, "completion", "25% of rows"),
    "empty texts": ({"text": [*MANY[:30], *[""] * 10]}, "text", "25% of rows"),
    "indices from 1": (
        {"question": MANY, "choices": [list("wxyz")] * 40, "answer": [1, 2, 3, 4] * 10},
        "completion",
        "counts from 1",
    ),
    "no last index": (
        {"question": MANY, "choices": [list("wxyz")] * 40, "answer": [1, 2] * 20},
        "completion",
        "from 1",
    ),
    "indices as text": (
        {"question": MANY, "choices": [list("wxyz")] * 40, "answer": ["1", "2", "3", "4"] * 10},
        "completion",
        "counts from 1",
    ),
    "indices too high": (
        {"question": MANY, "choices": [list("xy")] * 40, "answer": [0, 1, 2, 3] * 10},
        "completion",
        "goes up to 3",
    ),
    "a thread": (
        {"message_id": MANY, "parent_id": MANY, "text": MANY, "role": ["prompter", "assistant"] * 20},
        "text",
        "one message of a conversation",
    ),
    "messages as rows": ({"role": ["user", "assistant"] * 20, "content": MANY}, "text", "one message"),
    "several completions": (
        {"instruction": MANY, "completions": [[{"model": m, "response": f"{m} said."} for m in "ab"]] * 40},
        "completion",
        "most rows hold 2 or more",
    ),
    "several answers": ({"question": MANY, "answers": [["a", "b", "c"]] * 40}, "completion", "most rows hold 3"),
    "a number as label": ({"text": MANY, "label": [0, 1] * 20}, "text", "'label' beside it"),
    "passages in a struct": (
        {"question": MANY, "answer": MANY, "context": [{"title": ["t"], "sentences": [["s"]]}] * 40},
        "completion",
        "does not use 'context'",
    ),
    "passages in a list": (
        {"query": MANY, "answers": [["a"]] * 40, "passages": [[{"text": "p"}]] * 40},
        "completion",
        "does not use 'passages'",
    ),
    "answers to nothing": ({"chosen": MANY, "rejected": MANY[::-1]}, "preference", "no prompt"),
}


@pytest.mark.parametrize("name", DOUBTED)
def test_what_a_build_would_reject_or_omit_is_a_doubt(name: str) -> None:
    columns, form, doubt = DOUBTED[name]
    found = format_candidates(described(pa.table(columns)))
    chosen = choose(found)
    assert isinstance(chosen, Ambiguity)
    assert any(reading.form == form and doubt in "; ".join(reading.doubts.values()) for reading in found)
    assert doubt in str(chosen)


UNDOUBTED: dict[str, tuple[dict[str, list[Any]], dict[str, str]]] = {
    "spans": (
        {"question": MANY, "context": MANY, "answers": SPANS * 40},
        {"prompt": "question", "context": "context", "completion": "answers.text[0]"},
    ),
    "spans of structs": (
        {"question": MANY, "context": MANY, "answers": [[{"text": t, "answer_start": 1} for t in "ab"]] * 40},
        {"prompt": "question", "context": "context", "completion": "answers[0].text"},
    ),
    "lists of one": ({"question": MANY, "answers": [["a"]] * 39 + [["a", "b"]]}, {"completion": "answers[0]"}),
    "one stranger": (
        {"messages": [said("user", "assistant")] * 399 + [said("user", "narrator")]},
        {"messages": "messages"},
    ),
    "speakers in capitals": ({"messages": [said(" User", "Assistant", "TOOL")] * 40}, {"messages": "messages"}),
    "letters": (
        {"question": MANY, "choices": [list("wxyz")] * 40, "answer": ["B", "C"] * 20},
        {"completion": "choices[{answer}]"},
    ),
    "tools as a list": (
        {"messages": [said("user", "assistant")] * 40, "tools": [[{"type": "function"}]] * 40},
        {"messages": "messages", "tools": "tools"},
    ),
    "a prompt of messages": (
        {"prompt": [said("user")] * 40, "chosen": [said("assistant")] * 40, "rejected": [said("assistant")] * 40},
        {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
    ),
    "an answer to messages": (
        {"input": [said("user")] * 40, "output": MANY},
        {"prompt": "input", "completion": "output"},
    ),
    "messages without an answer": ({"messages": [said("system", "user")] * 40}, {"prompt": "messages"}),
    "a text with a role": ({"text": MANY, "role": MANY}, {"text": "text"}),
}


@pytest.mark.parametrize("name", UNDOUBTED)
def test_what_only_resembles_a_doubt_is_not_one(name: str) -> None:
    columns, roles = UNDOUBTED[name]
    found = choose(format_candidates(described(pa.table(columns))))
    assert isinstance(found, FormatCandidate), str(found)
    assert not found.doubts and roles.items() <= found.roles.items()


def test_a_doubt_about_one_candidate_does_not_make_another_certain() -> None:
    many = [[{"response": "a"}, {"response": "b"}]] * 40
    table = pa.table({"instruction": MANY, "completions": many, "correct_answers": [["None"]] * 40})
    found = choose(format_candidates(described(table)))
    assert isinstance(found, Ambiguity)
    assert {reading.roles["completion"] for reading in found.close} == {"completions[0].response", "correct_answers[0]"}


@pytest.mark.parametrize(
    ("column", "values", "certain"),
    [
        ("note", [*range(40)], True),
        ("note", ["one or two", "words"] * 20, False),
        ("response", [b"\xff\x00"] * 40, False),  # an answer by its name, though not readable as one
        ("response", pa.array([None, ""] * 20, pa.string()), True),
        ("response", pa.array([None] * 40, pa.binary()), True),
    ],
)
def test_prompts_stand_alone_only_if_nothing_could_answer_them(column: str, values: Any, certain: bool) -> None:
    table = pa.table({"prompt": [f"What is {number} and {number}?" for number in range(40)], column: values})
    found = choose(format_candidates(described(table)))
    assert (isinstance(found, FormatCandidate) and found.form == "prompt_only") == certain
    assert certain or isinstance(found, Ambiguity)
