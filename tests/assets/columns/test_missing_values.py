"""NaN, which pandas writes for a missing value, is a missing value: as `datasets` reads what pandas wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from support.columns_stage import Row, canonical, codes, config_of, described, kept
from support.raw_rows import chunks_of
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve

NAN = math.nan
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
CALL = {"function": {"name": "f", "arguments": {}}}
PAIR = {"prompt": "a", "completion": "b"}
TALK = {"messages": [USER, ANSWER]}

ROWS: dict[str, tuple[Row, Row]] = {
    "an input": ({"instruction": "a", "input": "x", "output": "b"}, {"instruction": "a", "input": NAN, "output": "b"}),
    "a system prompt": (PAIR | {"system": "s"}, PAIR | {"system": NAN}),
    "a prompt": (PAIR, {"prompt": NAN, "completion": "b"}),
    "an answer": (PAIR, {"prompt": "a", "completion": NAN}),
    "an answer of numbers": ({"question": "a", "answer": 3.5}, {"question": "a", "answer": NAN}),
    "tools": (TALK | {"tools": [{"name": "f"}]}, TALK | {"tools": NAN}),
    "a conversation": (TALK, {"messages": NAN}),
    "a rejected answer": (
        {"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "chosen": "b", "rejected": NAN},
    ),
    "a label": (PAIR | {"label": True}, PAIR | {"label": NAN}),
    "a label of numbers": (PAIR | {"label": 1.0}, PAIR | {"label": NAN}),
    "earlier turns": (PAIR | {"history": [["q", "r"]]}, PAIR | {"history": NAN}),
}  # fmt: skip
"""A row of five, and one after them that lacks a value."""


@pytest.mark.parametrize("case", ROWS)
def test_nan_in_a_column_is_null(case: str, tmp_path: Path) -> None:
    from datasets import Dataset
    from pandas import DataFrame

    rows = [*[ROWS[case][0]] * 5, ROWS[case][1]]
    null = Dataset.from_pandas(DataFrame(rows)).to_list()
    found, expected = read(tmp_path / "nan.jsonl", rows), read(tmp_path / "null.jsonl", null)
    assert found == expected
    assert len(found[1]) == 5 + (not found[2])


FIELDS: dict[str, list[Row]] = {
    "the text of an answer with calls": [USER, {"role": "assistant", "content": NAN, "tool_calls": [CALL]}, ANSWER],
    "calls": [USER, ANSWER | {"tool_calls": NAN}],
    "a name": [USER | {"name": NAN}, ANSWER],
    "a thought": [USER, ANSWER | {"reasoning_content": NAN}],
    "a call's id": [USER, ANSWER, {"role": "tool", "content": "1", "tool_call_id": NAN}],
    "a text": [{"role": "system", "content": NAN}, USER, ANSWER],
}
"""Conversations in which a field lacks its value."""


@pytest.mark.parametrize("case", FIELDS)
def test_nan_in_a_field_of_a_message_is_null(case: str, tmp_path: Path) -> None:
    talks = [[{name: None if value is NAN else value for name, value in said.items()} for said in FIELDS[case]]]
    found, expected = (
        read(tmp_path / f"{at}.jsonl", [*[TALK] * 5, {"messages": talk}])
        for at, talk in enumerate((FIELDS[case], *talks))
    )
    assert found == expected


def read(path: Path, rows: list[Row]) -> tuple[Row, list[Row], dict[int, str]]:
    """Return the mapping, the canonical rows and the codes of the rejected ones."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (chunk,) = chunks_of(path)
    table = chunk.load().table
    prompt = {"format_type": "chat"} if "history" in rows[0] else {}
    mapping = resolve(config_of(prompt_template=prompt), described(table))
    out = to_canonical(table, mapping)
    return mapping.to_json(), kept(out), codes(out)


def test_numbers_that_are_nan_stay_as_they_are_for_jinja_templates(tmp_path: Path) -> None:
    """A template gets the row as Python reads it."""
    out = canonical(
        [{"n": 1.5, "a": "b"}, {"n": NAN, "a": "b"}],
        prompt_template={"format_type": "jinja", "template": "{{ n }} {{ a }}", "label_column": "a"},
    )
    assert [str(row["n"]) for row in kept(out)] == ["1.5", "nan"]
