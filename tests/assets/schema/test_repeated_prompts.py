"""Prompts that repeat a conversation's first message: only if they do so in every row, compared with plain Python."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.schema.candidates import Ambiguity, FormatCandidate, choose
from tokenloom.assets.schema.formats import format_candidates
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.schema.stage import STAGE
from tokenloom.assets.stage.definition import validate
from tokenloom.resources.tables.json_text import json_column

Row = dict[str, Any]
TEXT = st.sampled_from(["a", "b", "", "é\n"])
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": st.one_of(st.none(), TEXT)})
ROWS = st.lists(
    st.fixed_dictionaries({"prompt": st.one_of(st.none(), TEXT), "messages": st.lists(MESSAGE, max_size=3)}),
    min_size=1,
    max_size=5,
)
TALK = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
LAYOUTS = {"typed": pa.string(), "large": pa.large_string(), "json": None}


def table_of(rows: list[Row], layout: str) -> pa.Table:
    prompts = pa.array([row["prompt"] for row in rows], LAYOUTS[layout] or pa.string())
    talks = [row["messages"] for row in rows]
    messages = json_column([json.dumps(talk) for talk in talks]) if layout == "json" else pa.array(talks, TALK)
    return pa.table({"prompt": prompts, "messages": messages})


def repeats(*tables: pa.Table) -> list[str]:
    sketches = [sketch(table) for table in tables]
    for found in sketches:
        validate(STAGE, found)
    return next(column for column in merge(sketches) if column["column"] == "prompt").get("repeats", [])


@given(ROWS, st.integers(0, 5), st.sampled_from(sorted(LAYOUTS)))
def test_a_repetition_is_one_in_every_row_of_all_chunks(rows: list[Row], cut: int, layout: str) -> None:
    bounds = [0, *({min(cut, len(rows))} - {0, len(rows)}), len(rows)]
    found = repeats(*(table_of(rows[start:end], layout) for start, end in pairwise(bounds)))
    first = [[message["content"] for message in row["messages"][:2]] for row in rows]
    same = all(not row["prompt"] or row["prompt"] in said for row, said in zip(rows, first, strict=True))
    assert found == ["messages"] * same


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_a_prompt_that_differs_is_a_doubt(layout: str) -> None:
    talk = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    rows = [{"prompt": "Why?", "messages": talk}] * 40
    found = choose(format_candidates(merge([sketch(table_of(rows, layout))])))
    assert isinstance(found, FormatCandidate) and found.roles == {"messages": "messages"}
    assert found.unused == ("prompt",) and any("repeats the start of 'messages'" in why for why in found.evidence)
    other = [*rows, {"prompt": "How?", "messages": talk}]
    assert isinstance(choose(format_candidates(merge([sketch(table_of(other, layout))]))), Ambiguity)
