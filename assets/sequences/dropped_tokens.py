"""Which tokens of its rows a sequence lacks, and where: for showing where a row was cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.truncation_order import TruncationOrder
from tokenloom.assets.sequences.fit_and_pack import to_sequences, with_pair_lengths
from tokenloom.assets.stage.pairs import in_pairs
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import LengthConfig
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, offsets_of

LOSSES = ("tokens_cut", "tokens_left_out")
"""Counters of the tokens that rows in the sequences lost."""


class Gap(NamedTuple):
    """Tokens of a row that its sequences lack.

    Args:
        position: the number of tokens of the sequence before the gap.
        ids: int [dropped tokens].
        ends: whether the gap is after the row's last token.
    """

    position: int
    ids: np.ndarray
    ends: bool = False


Gaps = dict[str, dict[int, list[Gap]]]
"""The gaps of a chunk of sequences, by side and number of the sequence."""


def dropped_tokens(tokens: pa.Table, sequences: pa.Table, settings: Mapping[str, Any]) -> Gaps:
    """Return the gaps of the sequences of a chunk.

    Every token that a row of a sequence lost is in one gap: before the row's next token, or after its last.
    `drop_turns` renders rows again, so there a gap is what the row has between the start and the end that both share.

    Args:
        tokens: the chunk of tokens.
        sequences: its sequences.
        settings: those of the stage `sequences`, as its manifest has them.
    """
    if settings["length.strategy"] == "drop_turns":
        found = {side: _without_turns(sides(tokens)[side], stored) for side, stored in sides(sequences).items()}
    else:
        origins = sides(_origins(tokens, settings))
        found = {side: _gaps(sides(tokens)[side], stored, origins[side]) for side, stored in sides(sequences).items()}
    gaps: Gaps = {}
    for side, of_side in found.items():
        for number, gap in of_side:
            gaps.setdefault(side, {}).setdefault(number, []).append(gap)
    return gaps


def _origins(tokens: pa.Table, settings: Mapping[str, Any]) -> pa.Table:
    """Return the sequences of a chunk, with the place of each token among the chunk's tokens instead of its id.

    No strategy and no packing depends on ids.
    """
    for index, name in enumerate(tokens.column_names):
        if name.endswith("input_ids"):
            offsets, ids = list_parts(tokens[name])
            tokens = tokens.set_column(index, name, list_array(offsets, np.arange(len(ids), dtype=np.uint32)))
    given = {name: settings.get(f"length.{name}") for name in ("strategy", "packing", "stride")}
    length = LengthConfig.model_validate({name: value for name, value in given.items() if value is not None})
    order = settings.get("order") and TruncationOrder(**settings["order"])
    longest, trained = settings["tokenizer.max_length"], settings.get("trained", True)
    pack = in_pairs(lambda table: to_sequences(table, length, longest, order, trained))
    return pack(with_pair_lengths(tokens) if order else tokens).table


def _gaps(tokens: pa.Table, sequences: pa.Table, origins: pa.Table) -> Iterator[tuple[int, Gap]]:
    """Yield the gaps of one side, each with the number of its sequence."""
    (texts, ids), (starts, stored) = list_parts(tokens["input_ids"]), list_parts(sequences["input_ids"])
    ids, origin = ids.to_numpy(), list_parts(origins["input_ids"])[1].to_numpy().astype(np.int64)
    if not np.array_equal(ids[origin], stored.to_numpy()):
        return  # sequences of other tokens
    kept = np.unique(origin)
    text = np.searchsorted(texts, origin, side="right") - 1
    at = np.searchsorted(kept, origin)
    before = np.maximum(np.append(-1, kept)[at] + 1, texts[text])  # the first token after the kept one before
    last = np.append(kept, len(ids))[at + 1] >= texts[text + 1]
    after = np.where(last, texts[text + 1], origin + 1)
    for index in np.flatnonzero((before < origin) | (origin + 1 < after)).tolist():
        number = int(np.searchsorted(starts, index, side="right")) - 1
        position = index - int(starts[number])
        if before[index] < origin[index]:
            yield number, Gap(position, ids[before[index] : origin[index]])
        if origin[index] + 1 < after[index]:
            yield number, Gap(position + 1, ids[origin[index] + 1 : after[index]], ends=True)


def _without_turns(tokens: pa.Table, sequences: pa.Table) -> Iterator[tuple[int, Gap]]:
    """Yield the gaps of one side after `drop_turns`; none for rows that have several texts or documents."""
    (texts, ids), (_, stored) = list_parts(tokens["input_ids"]), list_parts(sequences["input_ids"])
    pieces, rows = list_parts(sequences["rows"])
    ends = offsets_of(list_parts(sequences["document_lengths"])[1].to_numpy())
    row_of_text, rows, ids, stored = tokens[ROW].to_numpy(), rows.to_numpy(), ids.to_numpy(), stored.to_numpy()
    found, first = np.searchsorted(row_of_text, rows), list_parts(sequences["input_ids"])[0]
    single = (np.searchsorted(row_of_text, rows, side="right") - found == 1) & (np.bincount(rows)[rows] == 1)
    shorter = np.diff(ends) < np.diff(texts)[found]
    for document in np.flatnonzero(single & shorter).tolist():
        number = int(np.searchsorted(pieces, document, side="right")) - 1
        whole = ids[texts[found[document]] : texts[found[document] + 1]]
        left = stored[ends[document] : ends[document + 1]]
        head = _shared(whole, left)
        tail = _shared(whole[head:][::-1], left[head:][::-1])
        yield number, Gap(int(ends[document] - first[number]) + head, whole[head : len(whole) - tail])


def _shared(a: Ints, b: Ints) -> int:
    """Return the number of equal elements at the start of both."""
    size = min(len(a), len(b))
    return int(np.argmin(np.append(a[:size] == b[:size], False)))
