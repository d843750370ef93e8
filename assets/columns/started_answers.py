"""Prompts that end with the start of their answer, which the answer continues.

Both are one turn of the assistant, as transformers' `continue_final_message` writes it: the start is not trained.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.contract import RowProblem
from tokenloom.assets.columns.messages import slice_messages
from tokenloom.assets.columns.repeated_prompts import begins, with_first
from tokenloom.assets.stage.forms import RANGES, has_calls
from tokenloom.resources.tables.nested_paths import list_values
from tokenloom.resources.tables.ragged import Flags, flags_of, offsets_of, text_parts

_PLAIN = '{"role": null, "content": null}'
_WHOLE = r'^\{("role": null, "content": null|"content": null, "role": null)'
"""Fields of a message whose content is the text of its column."""


def with_started(
    prompt: pa.Array, answers: Collection[pa.Array], join: bool
) -> tuple[pa.Array, list[pa.Array], RowProblem]:
    """Move the assistant's message at the end of prompts to the start of the answers that continue it.

    Args:
        prompt, answers: conversations [rows]; no answers: they are still to be generated.
        join: whether to move it if there are answers; if not, all such prompts are a problem.

    Returns:
        The prompts, the answers, and the prompts that the answers cannot continue: of more than text, or repeated.
    """
    lengths, flat = list_values(prompt)
    last = flat.take(pa.array(offsets_of(lengths)[1:] - 1, mask=lengths == 0))
    begun = _speaks(last)
    begun[begun] = ~has_calls(last.filter(pa.array(begun)))
    firsts = [said.take(pa.array(offsets_of(sizes)[:-1], mask=sizes == 0)) for sizes, said in map(list_values, answers)]
    if firsts:
        begun &= np.logical_or.reduce([_speaks(first) for first in firsts])
    joined, start = begun & (join and bool(answers)) & (lengths > 1), pc.struct_field(last, "content").fill_null("")
    if joined.any():
        joined &= flags_of(pc.struct_field(last, "fields").is_null()) & flags_of(
            pc.struct_field(last, "reasoning").is_null()
        )
        for first in firsts:
            joined &= (
                _speaks(first) & _continues(first) & ~begins(pc.struct_field(first, "content"), *text_parts(start))
            )
    message = "the prompt ends with an assistant message, the start of the answer, which would become a turn of its own"
    problem = RowProblem(begun & ~joined, "started_answer", "prompt", message, start)
    if not joined.any():
        return prompt, list(answers), problem
    prompt = slice_messages(prompt, np.zeros_like(lengths), lengths - joined)
    return prompt, [_joined(*pair, start, joined) for pair in zip(answers, firsts, strict=True)], problem


def _speaks(messages: pa.Array) -> Flags:
    return flags_of(pc.equal(pc.struct_field(messages, "role"), "assistant"))


def _continues(first: pa.Array) -> Flags:
    """Return which messages are a text, with or without calls after it."""
    fields = pc.struct_field(first, "fields").fill_null(_PLAIN)
    own = flags_of(pc.match_substring_regex(fields, _WHOLE)) & ~flags_of(pc.match_substring(fields, '"tokenloom:'))
    return own & flags_of(pc.struct_field(first, "reasoning").is_null())


def _joined(answer: pa.Array, first: pa.Array, start: pa.Array, rows: Flags) -> pa.Array:
    """Return answers whose first message has a start before it, up to whose end nothing of its turn is trained."""
    content = pc.binary_join_element_wise(start, pc.struct_field(first, "content"), "")
    sizes = [pc.binary_length(text).cast(pa.string()) for text in (start, content)]
    before = pc.utf8_slice_codeunits(pc.struct_field(first, "fields").fill_null(_PLAIN), 0, -1)
    named, middle = f', "{RANGES}": {{"content": [[-1, ', ", 0.0], ["
    fields = pc.binary_join_element_wise(before, named, sizes[0], middle, sizes[0], ", ", sizes[1], ", null]]}}", "")
    return with_first(answer, rows, content=content, fields=fields)
