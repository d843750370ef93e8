"""One odd row among many does not change how the others are read: it is read as they are, or rejected with a code."""

from __future__ import annotations

from typing import Any

import pytest

from support.columns_stage import Row, as_json, codes, config_of, described, kept, table_of
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.errors import ConfigError

COUNT = 100
ANSWER = {"role": "assistant", "content": "ho"}


def talk(number: int) -> Row:
    return {"messages": [{"role": "user", "content": f"hi {number}"}, ANSWER]}


def pair(number: int) -> Row:
    return {"prompt": f"q {number}", "completion": f"a {number}"}


def choice(number: int) -> Row:
    return {"question": f"what {number}?", "choices": ["a", "b", "c", "d"], "answer": number % 4}


TOOLS = {"tools": [{"type": "function", "function": {"name": "f"}}]}
FORMATS = {
    "messages": talk,
    "tools": lambda number: talk(number) | TOOLS,
    "tools as text": lambda number: talk(number) | {"tools": '[{"name": "f"}]'},
    "pairs": lambda number: {"prompt": f"q {number}", "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "no"}]},
    "labels": lambda number: pair(number) | {"label": number % 2},
    "labels as text": lambda number: pair(number) | {"label": ["good", "bad"][number % 2]},
    "labels as flags": lambda number: pair(number) | {"label": number % 2 == 0},
    "choices": choice,
    "letters": lambda number: choice(number) | {"answer": "ABCD"[number % 4]},
    "earlier turns": lambda number: pair(number) | {"history": [["q", "a"]]},
    "token ids": lambda number: {"input_ids": [1, 2, number], "labels": [-100, 2, number]},
    "variables": lambda number: talk(number) | {"chat_template_kwargs": {"enable_thinking": True}},
    "classes": lambda number: {"text": f"some text {number}", "label": ["joy", "fear", "anger"][number % 3]},
}
CASES: dict[str, tuple[str, Row, str | None]] = {
    "tools of nothing": ("tools", {"tools": {}}, None),
    "tools of a word": ("tools", {"tools": "none"}, "not_tools"),
    "a name as a tool": ("tools", {"tools": ["f"]}, "not_tools"),
    "tools of nothing beside texts": ("tools as text", {"tools": {}}, None),
    "tools of nothing where others have none": ("messages", {"tools": {}}, None),
    "a conversation as an object": ("messages", {"messages": {}}, "unknown_role"),
    "a conversation as a text": ("messages", {"messages": "hello"}, "not_messages"),
    "a content as an object": ("messages", {"messages": [{"role": "user", "content": {"a": 1}}, ANSWER]}, "not_text"),
    "calls as an object": ("messages", {"messages": [{**ANSWER, "tool_calls": {}}]}, "invalid_tool_call"),
    "a chosen answer as an object": ("pairs", {"chosen": {}}, "unknown_role"),
    "a label of two": ("labels", {"label": 2}, "not_a_label"),
    "a label of a half": ("labels", {"label": 0.5}, "not_a_label"),
    "a label in words": ("labels", {"label": "unsure"}, "not_a_label"),
    "a label as a list": ("labels as text", {"label": []}, "not_a_label"),
    "a label as an object": ("labels as flags", {"label": {}}, "not_a_label"),
    "an index beyond the choices": ("choices", {"answer": 7}, "index_out_of_range"),
    "no index": ("choices", {"answer": -1}, "index_out_of_range"),
    "an index in words": ("choices", {"answer": "none"}, "index_out_of_range"),
    "a letter in words": ("letters", {"answer": "N/A"}, "index_out_of_range"),
    "an index among letters": ("letters", {"answer": 3}, None),
    "a letter as a list": ("letters", {"answer": []}, "index_out_of_range"),
    "choices as a text": ("choices", {"choices": "a"}, "not_text"),
    "earlier turns as an object": ("earlier turns", {"history": {}}, "not_turns"),
    "token ids as a text": ("token ids", {"input_ids": "1 2"}, "not_token_ids"),
    "variables as a list": ("variables", {"chat_template_kwargs": []}, None),
    "a class as an object": ("classes", {"label": {}}, "not_text"),
}
"""The format of the other rows, what one row has in their place, and the code of its reject, or None."""


@pytest.mark.parametrize("case", CASES)
def test_one_odd_row_changes_no_other(case: str) -> None:
    name, change, code = CASES[case]
    rows = [FORMATS[name](number) for number in range(COUNT)]
    mapping, expected, none = read(rows)
    found, read_rows, rejected = read([*rows[:7], rows[7] | change, *rows[8:]])
    assert found == mapping
    assert rejected == ({} if code is None else {15: code})
    assert [*read_rows[:7], *read_rows[len(read_rows) - COUNT + 8 :]] == [*expected[:7], *expected[8:]]
    assert not none


@pytest.mark.parametrize("values", [[0, 1, 2], [0.2, 0.9], [1, 5], ["helpful", "unhelpful"]])
def test_labels_of_other_numbers_and_of_two_words_are_asked_about(values: list[Any]) -> None:
    with pytest.raises(ConfigError, match="does not use 'label', which could say whether the answer is wanted"):
        read([pair(number) | {"label": values[number % len(values)]} for number in range(COUNT)])


def read(rows: list[Row]) -> tuple[Any, list[Row], dict[int, str]]:
    """Return the mapping, the canonical rows and the codes of the rejected ones."""
    table = table_of(as_json(*rows))
    history = {"prompt_template": {"format_type": "chat"}} if "history" in rows[0] else {}
    mapping = resolve(config_of(**history), described(table))
    out = to_canonical(table, mapping)
    return mapping, kept(out), codes(out)
