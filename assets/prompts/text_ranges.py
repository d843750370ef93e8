"""Ranges of a message's text that have their own weights: content parts with flags, and axolotl's `train_detail`.

`take_ranges` takes them out of the messages, before rows are grouped by shape. `with_ranges` divides the spans of the
rendered rows, whose pieces show where each value is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.content_parts import is_blank
from tokenloom.assets.columns.messages import struct_of
from tokenloom.assets.prompts.spans import SPAN_ROLES, Piece, flat_spans, span_lists
from tokenloom.assets.schema.conventions import kind_of, loss_weight
from tokenloom.assets.stage.forms import MESSAGE, MESSAGES, RANGES
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PromptTemplateConfig
from tokenloom.config.trained_kinds import roles_trained
from tokenloom.resources.tables.json_text import to_json_text
from tokenloom.resources.tables.ragged import flags_of, list_array, list_parts, row_of, text_parts
from tokenloom.resources.templates.jinja import Slot

WeightedRange = tuple[int, int, float]
"""Start and end in bytes of a value, and the weight of that text. A start of -1 is that of the turn."""

Cuts = Mapping[tuple[int, int, str], Sequence[WeightedRange]]
"""The ranges by index of the row in the chunk, index of the message, and `content` or `reasoning`."""

CutsOfRows = Mapping[int, Sequence[WeightedRange]]
"""The ranges of one value by row position."""

_BEGIN, _END = "begin_offset", "end_offset"


def ranges_of(prompt: PromptTemplateConfig) -> tuple[str, ...]:
    """Return the names of the fields of messages with ranges."""
    return (RANGES, prompt.train_ranges) if prompt.train_ranges else (RANGES,)


def take_ranges(messages: pa.Array, prompt: PromptTemplateConfig) -> tuple[pa.Array, Cuts, int]:
    """Split conversations from their ranges; also count the messages that have ranges, but whose role is not trained.

    A message with ranges is trained if one of them is. Other messages have the weights that they had. Ranges that are
    not valid are left in the message as the problem that it has.
    """
    offsets, flat = list_parts(messages)
    columns = dict(zip(MESSAGE.names, flat.flatten(), strict=True))
    fields, named = columns["fields"], ranges_of(prompt)
    if fields.null_count == len(fields):
        return messages, {}, 0
    has_ranges = np.any([flags_of(pc.match_substring(fields, to_json_text(name))) for name in named], axis=0)
    if not has_ranges.any():
        return messages, {}, 0
    roles = columns["role"]
    weights, texts = columns["weight"].to_pylist(), fields.to_pylist()
    row, chosen, cuts = row_of(np.diff(offsets)), roles_trained(prompt.train_on) | {"assistant"}, {}
    unheeded = 0
    for index in np.flatnonzero(has_ranges).tolist():
        left = json.loads(texts[index])
        parts, detail = left.pop(RANGES, None) or {}, left.pop(prompt.train_ranges, None) if named[1:] else None
        if roles[index].as_py() in chosen:
            try:
                said = {name: columns[name][index].as_py() or "" for name in ("content", "reasoning")}
                if prompt.train_on == "all":  # prompts are trained, too
                    parts = {kind: [part for part in of if part[0] >= 0] for kind, of in parts.items()}
                if detail is not None:
                    parts = {**parts, "content": _detail(detail, said["content"], left, parts)}
                inherits = None if detail is None else 0.0
                whole = {name: [(0, len(text.encode()), inherits)] for name, text in said.items() if text}
                trained = roles[index].as_py() in roles_trained(prompt.train_on)
                default = trained and _is_default(prompt, roles, index, int(offsets[row[index] + 1]))
                others = bool(left.get("tool_calls"))
                weights[index], ranges = _weighed({**whole, **parts}, weights[index], default, others)
                factor = (prompt.weights or {}).get(roles[index].as_py(), 1.0)
                for kind, parts_of_kind in ranges.items():
                    weighed = [(start, end, weight * factor) for start, end, weight in parts_of_kind]
                    cuts[int(row[index]), int(index - offsets[row[index]]), kind] = weighed
            except ValueError as error:
                left[RANGES] = ["invalid_ranges", str(error)]
        else:
            unheeded += 1
        texts[index] = None if left == {"role": None, "content": None} else to_json_text(left)
    columns |= {"weight": pa.array(weights, pa.float32()), "fields": pa.array(texts, pa.string())}
    return list_array(offsets, struct_of(columns, len(flat))).cast(MESSAGES), cuts, unheeded


def _is_default(prompt: PromptTemplateConfig, roles: pa.Array, index: int, end: int) -> bool:
    """Return whether `train_on` trains a message of a trained role; `end` is the end of its conversation."""
    return prompt.train_on != "last" or "assistant" not in roles[index + 1 : end].to_pylist()


def _weighed(
    parts: Mapping[str, Sequence[tuple[int, int, float | None]]], own: float | None, default: bool, others: bool
) -> tuple[float | None, dict[str, list[WeightedRange]]]:
    """Return the weight of a message with ranges, and the weights of these, multiplied by the message's own.

    Args:
        parts: the ranges of all text of the message; None for the weight that the message has without them.
        own: the weight that the message declares, or None.
        default: whether `train_on` trains the message.
        others: whether the message has more than text, such as tool calls.
    """
    inherited, factor = float(default) if own is None else own, 1.0 if own is None else own
    ranges = {
        kind: [(start, end, inherited if weight is None else weight * factor) for start, end, weight in found]
        for kind, found in parts.items()
    }
    if own is None and not any(weight for found in ranges.values() for _, _, weight in found):
        return (own, ranges) if others else (0.0, {})
    return factor, ranges if factor else {}


def _detail(value: Any, content: str, fields: Mapping[str, Any], parts: Mapping[str, Any]) -> list[WeightedRange]:
    """Return the ranges of axolotl's `train_detail`, in characters with inclusive ends; what is in none has weight 0.

    Raises:
        ValueError: a range is not one, or is not within the content, or ranges overlap.
    """
    own = fields.get("content")
    if parts.get("content") or not (own is None or is_blank(own)):
        raise ValueError("ranges to train need a content of text, without flags on its parts")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"the ranges to train are not a list of {{{_BEGIN}, {_END}, train}}")
    ranges, end = list[WeightedRange](), 0
    for item in sorted(value, key=lambda item: (str(type(item.get(_BEGIN))), item.get(_BEGIN) or 0)):
        first, last, weight = item.get(_BEGIN), item.get(_END), loss_weight(item)
        unknown = [name for name in item if name not in (_BEGIN, _END) and not kind_of(name) and item[name] is not None]
        if type(first) is not int or type(last) is not int or weight is None or unknown:
            raise ValueError(f"a range to train is not {{{_BEGIN}, {_END}, train}}: {item!r:.80}")
        if not 0 <= first <= last < len(content):
            size = f"the content of {len(content):,} characters"
            raise ValueError(f"the range to train from {first} to {last} is not within {size}")
        if first < end:
            raise ValueError(f"the range to train from {first} to {last} overlaps another one")
        ranges += [(end, first, 0.0), (first, last + 1, weight)]
        end = last + 1
    ranges.append((end, len(content), 0.0))
    at = {place: len(content[:place].encode()) for start, stop, _ in ranges for place in (start, stop)}
    return [(at[start], at[stop], weight) for start, stop, weight in ranges if start < stop]


def shifted(ranges: Sequence[WeightedRange], start: int, size: int) -> list[WeightedRange]:
    """Convert ranges of a text to ranges of a part of it, the `size` bytes from `start` on."""
    moved = ((max(first - start, min(first, 0)), min(end - start, size), weight) for first, end, weight in ranges)
    return [(first, end, weight) for first, end, weight in moved if first < end]


def placed(ranges: Sequence[WeightedRange], slot: Slot, value: str) -> list[WeightedRange]:
    """Convert ranges of a value to ranges of what a slot writes for it, which can be trimmed."""
    start, rest = 0, value
    for side, chars in slot.ops:
        stripped = rest.lstrip(chars) if side == "left" else rest.rstrip(chars)
        start += (len(rest.encode()) - len(stripped.encode())) * (side == "left")
        rest = stripped
    return shifted(ranges, start, len(rest.encode()))


def with_ranges(
    table: pa.Table,
    pieces: Sequence[Piece],
    columns: Sequence[pa.Array],
    cuts: Mapping[int, CutsOfRows],
    weights: Mapping[str, float] | None = None,
) -> pa.Table:
    """Divide the spans of rows at the bounds of ranges, and give the trained ones among them the ranges' weights.

    Args:
        table: rows that `assemble` makes of the pieces and columns.
        cuts: the ranges of each column, in bytes of the text that is placed.
        weights: factors for the weights of parts of answers, as in `assemble`.
    """
    if not any(cuts.values()):
        return table
    factors = np.array([(weights or {}).get(role, 1.0) for role in SPAN_ROLES])
    edits = sorted(_edits(table, pieces, columns, cuts))
    if not edits:
        return table
    bounds, _ = text_parts(table["text"])
    spans = flat_spans(table["spans"])
    starts = spans.start + bounds[row_of(spans.counts)]
    first, end, given = (np.array(column) for column in zip(*edits, strict=True))
    # in the bytes of all texts, spans start where one did or where a range starts or ends
    start = np.unique(np.concatenate([starts, first, end[end < bounds[-1]]]))
    owner = np.searchsorted(starts, start, side="right") - 1
    weight = spans.weight[owner]
    for at, until, own in zip(np.searchsorted(start, first), np.searchsorted(start, end), given, strict=True):
        ranged = (own * factors[spans.role[owner[at:until]]]).astype(np.float32)
        # what is masked stays masked: ranges weigh, they do not choose
        weight[at:until] = np.where(weight[at:until] != 0, ranged, weight[at:until])
    row = row_of(spans.counts)[owner]
    places = start - bounds[row], np.append(start[1:], bounds[-1]) - bounds[row]
    columns = (*places, spans.role[owner], spans.message[owner], weight, spans.control[owner])
    divided = span_lists(np.bincount(row, minlength=table.num_rows), *columns)
    return table.set_column(table.schema.get_field_index("spans"), "spans", divided)


def _edits(
    table: pa.Table, pieces: Sequence[Piece], columns: Sequence[pa.Array], cuts: Mapping[int, CutsOfRows]
) -> Iterator[tuple[int, int, float]]:
    """Yield start, end and weight of each range, in bytes of the texts of all rows."""
    bounds, _ = text_parts(table["text"])
    places = {row: place for place, row in enumerate(table[ROW].to_pylist())}
    for place, row in ((places[row], row) for row in {*chain.from_iterable(cuts.values())} if row in places):
        begun = at = int(bounds[place])
        for piece in pieces:
            size = len((piece.text if piece.text is not None else columns[piece.column][place].as_py()).encode())
            found = cuts.get(piece.column, {}).get(row, ()) if piece.text is None else ()
            yield from ((begun if start < 0 else at + start, at + end, weight) for start, end, weight in found)
            at += size
            # a turn is the trained pieces in a row, so it begins after the last one that is not trained
            begun = begun if piece.weight else at
