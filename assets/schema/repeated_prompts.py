"""Prompts that only repeat the first message of a conversation in another column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.schema.evidence.name_similarity import likeness
from tokenloom.assets.schema.evidence.speakers import SAID
from tokenloom.assets.schema.evidence.unused_columns import PROMPTS
from tokenloom.resources.tables.flags import Flags, flags_of
from tokenloom.resources.tables.json_text import is_json
from tokenloom.resources.tables.nested_paths import Path, evaluate, is_list, plain
from tokenloom.resources.tables.ragged import one_array

FIRST_ROWS = 16
"""Rows that are compared before all others, because few columns repeat another one."""


def repeated_conversations(table: pa.Table) -> dict[str, list[str]]:
    """Return, for each column of prompts as text, the columns whose conversations start with them in every row.

    A system message can come before. A prompt that is null or empty repeats any conversation.
    """
    named = {name: plain(one_array(table[name])) for name in table.column_names if _names_prompt(table, name)}
    texts = {name: column for name, column in named.items() if pa.types.is_string(column.type)}
    talks = [name for name in table.column_names if is_json(table[name].type) or is_list(table[name].type)]
    return {
        name: [
            other
            for other in talks
            if _repeats(text.slice(0, FIRST_ROWS), table.slice(0, FIRST_ROWS), other) and _repeats(text, table, other)
        ]
        for name, text in texts.items()
    }


def _names_prompt(table: pa.Table, name: str) -> bool:
    return likeness(name, PROMPTS).score >= 0.87 and table.column_names.count(name) == 1


def _repeats(texts: pa.Array, table: pa.Table, talk: str) -> bool:
    same = flags_of(pc.equal(texts.fill_null(""), ""))
    for step, field in ((step, field) for step in (0, 1) for field in SAID[:2]):
        if not same.all():
            same |= _equal(texts, evaluate(table, Path(talk, (step, field))))
    return bool(same.all())


def _equal(texts: pa.Array, said: pa.Array) -> Flags:
    said = plain(said)
    return flags_of(pc.equal(texts, said)) if pa.types.is_string(said.type) else np.zeros(len(texts), bool)
