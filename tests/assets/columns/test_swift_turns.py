"""ms-swift writes a turn of the assistant as several entries: a text, and each call. They are one message."""

from __future__ import annotations

import json

import pytest

from support.canonical_tables import call
from support.columns_stage import Row, as_json, canonical, kept

HI, HO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
SAID, RESULT = {"role": "assistant", "content": "Well."}, {"role": "tool", "content": "ok"}


def entry(*numbers: int) -> Row:
    """An entry of ms-swift with calls."""
    calls = [{"name": "f", "arguments": {"n": number}} for number in numbers]
    return {"role": "tool_call", "content": json.dumps(calls[0] if len(calls) == 1 else calls)}


def calling(content: str, *numbers: int) -> Row:
    """A message of OpenAI's layout with calls."""
    return {"role": "assistant", "content": content, "tool_calls": [call("f", {"n": number}) for number in numbers]}


ENTRIES: dict[str, tuple[list[Row], list[Row]]] = {
    "two calls": ([HI, entry(1), entry(2), RESULT, HO], [HI, calling("", 1, 2), RESULT, HO]),
    "a text and a call": ([HI, SAID, entry(1), RESULT, HO], [HI, calling("Well.", 1), RESULT, HO]),
    "a text and two calls": ([HI, SAID, entry(1), entry(2), RESULT], [HI, calling("Well.", 1, 2), RESULT]),
    "a list of calls": ([HI, SAID, entry(1, 2), entry(3)], [HI, calling("Well.", 1, 2, 3)]),
    "a thought": ([HI, SAID | {"reasoning_content": "Hm."}, entry(1)],
                  [HI, calling("Well.", 1) | {"reasoning_content": "Hm."}]),
    "a result between": ([HI, entry(1), RESULT, entry(2)], [HI, calling("", 1), RESULT, calling("", 2)]),
    "a question between": ([HI, entry(1), HI, entry(2)], [HI, calling("", 1), HI, calling("", 2)]),
    "calls and then a text": ([HI, entry(1), SAID], [HI, calling("", 1), SAID]),
    "calls of one message": ([HI, calling("Well.", 1), entry(2)], [HI, calling("Well.", 1, 2)]),
    "an entry with a thought of its own": (
        [HI, SAID, entry(1) | {"reasoning_content": "Hm."}], [HI, SAID, calling("", 1) | {"reasoning_content": "Hm."}],
    ),
    "an entry with other fields": ([HI, SAID, entry(1) | {"step": 3}], [HI, calling("Well.", 1) | {"step": 3}]),
    "untrained": ([HI, SAID, entry(1) | {"train": False}], [HI, SAID, calling("", 1) | {"train": False}]),
}  # fmt: skip
"""Entries of ms-swift, and the messages that they are in OpenAI's layout."""


@pytest.mark.parametrize("case", ENTRIES)
@pytest.mark.parametrize("as_text", [True, False], ids=["json", "arrow"])
def test_a_text_and_the_calls_after_it_are_one_turn(case: str, as_text: bool) -> None:
    found = []
    for talk in ENTRIES[case]:
        rows = [{"messages": talk}] * 3
        found.append([[*map(simple, row["messages"])] for row in kept(canonical(as_json(*rows) if as_text else rows))])
    assert found[0] == found[1]


def simple(found: Row) -> Row:
    """A message with its fields as an object, in any order."""
    fields = {name: value for name, value in json.loads(found["fields"] or "{}").items() if value is not None}
    return {**found, "fields": fields}


def test_an_entry_with_a_result_instead_of_a_call_is_a_message_of_its_own() -> None:
    parts = [{"type": "tool_result", "tool_use_id": "1", "content": "ok"}]
    (row,) = kept(canonical(as_json({"messages": [HI, SAID, {"role": "tool_call", "content": parts}, HO]})))
    assert [(each["role"], each["content"]) for each in row["messages"]] == [
        ("user", "hi"), ("assistant", "Well."), ("tool", "ok"), ("assistant", "ho"),
    ]  # fmt: skip
