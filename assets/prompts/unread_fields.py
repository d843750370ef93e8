"""Fields of messages that the chat template does not read, and rows in which nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.conversations import Turn
from tokenloom.assets.prompts.spans import flat_spans
from tokenloom.assets.schema.conventions import KNOWN, has_text, is_unknown, kind_of
from tokenloom.assets.schema.profiles import words
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import MESSAGES, REASONING_FIELDS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.rows import count_rows
from tokenloom.resources.tables.json_text import to_json_text
from tokenloom.resources.tables.ragged import list_parts, one_array, sum_rows

UNHEEDED = "weights_without_effect"
"""Counter of messages with a weight above 0 whose role is not trained."""

UNREAD = "unread_fields."
"""Start of the counters of messages with a field that the template does not read; the field's name follows."""

MAX_NAMES, OTHERS = 50, "other fields"

LOST = "the text of the field {} of a trained answer is not in the rendered text"

_THOUGHT = {"reasoning", "thinking", "thought", "thoughts", "think", "cot", "analysis", "scratchpad"}
_CALLS = {"call", "calls"}
_ANSWER = {"refusal", "audio", "answer", "response", "output", "completion", "text", "reply", "message", "value"}


def unread(turn: Turn, reads: Callable[[str], bool]) -> Iterator[str]:
    """Yield the fields of a message that could be a flag or hold text, and that the template does not read."""
    for name, value in (turn.fields or {}).items():
        known = name in KNOWN or kind_of(name) is not None or (name in REASONING_FIELDS and value is None)
        if not known and is_unknown(name, value) and not reads(name):
            yield name


def counter_of(name: str, found: Collection[str]) -> str:
    """Return the counter of a field; names are the data's, and there can be any number of them."""
    shown = f"{UNREAD}{''.join(char if char.isprintable() else '?' for char in name[:64])}"
    return shown if shown in found or len(found) < MAX_NAMES else f"{UNREAD}{OTHERS}"


def is_lost(name: str, turn: Turn, empty: bool) -> bool:
    """Return whether a field that the template does not read has text that belongs to the answer."""
    if not has_text((turn.fields or {}).get(name)):
        return False
    named = {*words(name)}
    if named & _THOUGHT:
        return not turn.reasons
    if named & _CALLS:
        return not turn.tool_calls
    return empty and not turn.tool_calls and bool(named & _ANSWER)


def notices(counters: Mapping[str, int]) -> list[str]:
    """Return what the build reports about fields without effect."""
    found = []
    if count := counters.get(UNHEEDED):
        found.append(
            f"{count:,} messages have a weight above 0 or weighted parts, but a role that is not trained, so they are "
            "masked; to train them, name their role in prompt_template.train_on"
        )
    fields = {name.removeprefix(UNREAD): count for name, count in counters.items() if name.startswith(UNREAD)}
    if fields:
        most = sorted(fields.items(), key=lambda field: -field[1])[:20]
        named = ", ".join(f"{name} ({count:,})" for name, count in most)
        found.append(
            f"fields of messages that the chat template does not read, with their number of messages: {named}; "
            "rename a flag to train or weight, or name ranges to train with prompt_template.train_ranges"
        )
    return found


@dataclass(frozen=True)
class TrainedOnly:
    """Renders rows without those whose own flags and weights leave nothing to train; they count as filtered.

    Args:
        render: renders all rows.
        ranges: names of the fields of messages with ranges.
    """

    render: Callable[[pa.Table], ChunkOutput]
    ranges: tuple[str, ...]

    def __call__(self, table: pa.Table) -> ChunkOutput:
        out = self.render(table)
        said = [list_parts(one_array(column))[1] for column in table.columns if column.type == MESSAGES]
        if not any(map(self._declares, said)) or "spans" not in out.table.column_names:
            return out
        spans = flat_spans(out.table["spans"])
        trained = sum_rows((spans.weight > 0).astype(np.int64), spans.offsets) > 0
        rows = out.table[ROW].to_numpy()
        kept = np.isin(rows, rows[trained])
        if kept.all():
            return out
        left = out.table.filter(pa.array(kept)).combine_chunks()
        return replace(out, table=left, filtered=out.filtered + count_rows(out.table) - count_rows(left))

    def _declares(self, messages: pa.Array) -> bool:
        """Return whether a message has a weight or ranges."""
        weight, fields = (pc.struct_field(messages, name) for name in ("weight", "fields"))
        if weight.null_count < len(weight):
            return True
        found = (pc.any(pc.match_substring(fields, to_json_text(name)), min_count=0).as_py() for name in self.ranges)
        return fields.null_count < len(fields) and any(found)
