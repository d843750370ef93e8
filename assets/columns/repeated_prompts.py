"""Finds answers that begin with their prompt, which would be trained as part of the answer, and prompts that end with
the start of their answer, which the answer continues.

Pairs that repeat the prompt in chosen and rejected lose the repetition, and so do completions that repeat its messages;
other rows are counted. A start and the answer that continues it are one turn of the assistant, as transformers'
`continue_final_message` writes it: the start is not trained.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.messages import end_messages, slice_messages, with_first
from tokenloom.assets.stage.forms import RANGES, has_calls
from tokenloom.assets.stage.rejects import RowProblem
from tokenloom.resources.tables.nested_paths import list_values
from tokenloom.resources.tables.ragged import (
    Flags,
    Ints,
    flags_of,
    offsets_of,
    ranges,
    sum_rows,
    text_array,
    text_parts,
)

REPEATED = "answers_with_prompt"
"""Counter: rows whose answer begins with the prompt, or with its last line."""

REMOVED = "prompts_removed"
"""Counter: rows from whose answers a repeated prompt was removed."""

SHORTEST = 5
"""Fewest bytes of a prompt, or of its last line, that count as repeated: an answer can begin with a short word."""

_NEWLINE = ord("\n")
_ANSWERS = ("completion", "chosen", "rejected")
_IN_WORDS = np.array([chr(byte).isalnum() or byte >= 128 for byte in range(256)])


def count_repeated(columns: Mapping[str, pa.Array], answer: str | None, kept: Flags) -> int:
    """Return the number of kept rows whose answer begins with the prompt, or with its last line.

    Args:
        columns: those of a form.
        answer: for the form `fields`, the field that is trained, or None.
    """
    if answer is not None:
        if not pa.types.is_string(columns[answer].type):
            return 0
        prompts = [text for name, text in columns.items() if name != answer and pa.types.is_string(text.type)]
        pairs = [(prompt.fill_null(""), columns[answer].fill_null("")) for prompt in prompts]
    elif "prompt" in columns:
        prompt, answers = columns["prompt"], [columns[side] for side in _ANSWERS if side in columns]
        if not pa.types.is_string(prompt.type):
            prompt, answers = _content(prompt, -1, "user"), [_content(each, 0, "assistant") for each in answers]
        pairs = [(prompt, text) for text in answers]
    else:
        return 0
    repeats = np.zeros(len(kept), bool)
    for prompt, text in pairs:
        repeats |= begins(text, *_bounds(prompt)) | begins(text, *_last_line(prompt))
    return int((repeats & kept).sum())


def without_prompt(prompt: pa.Array, answers: Sequence[pa.Array]) -> tuple[list[pa.Array], Flags]:
    """Remove the prompt from the start of answers that all begin with it, with white space after it.

    Args:
        prompt, answers: conversations [rows]; the last message of the prompt and the first of each answer are compared.

    Returns:
        The answers, and bool [rows], which of them were changed.
    """
    asked = _content(prompt, -1, "user")
    said = [_content(answer, 0, "assistant") for answer in answers]
    offsets, data = _bounds(asked)
    repeats = np.logical_and.reduce([begins(text, offsets, data, shortest=1) for text in said])
    if not repeats.any():
        return list(answers), repeats
    rest = [_rest(text, np.where(repeats, np.diff(offsets), 0)) for text in said]
    for text in rest:
        repeats &= flags_of(pc.not_equal(text, ""))
    return [with_first(answer, repeats, content=text) for answer, text in zip(answers, rest, strict=True)], repeats


def _content(conversations: pa.Array, index: int, role: str) -> pa.Array:
    """Return the content of each row's first (0) or last (-1) message if it has the role, else ""."""
    spoken = end_messages(conversations, index)
    is_role = pc.equal(pc.struct_field(spoken, "role"), role)
    return pc.if_else(is_role, pc.struct_field(spoken, "content"), "").fill_null("")


def _rest(texts: pa.Array, cut: Ints) -> pa.Array:
    """Return texts without their first bytes and white space after them; `cut` is int64 [rows]."""
    offsets, data = text_parts(texts)
    lengths = np.diff(offsets) - cut
    rest = text_array(offsets_of(lengths), data[ranges(offsets[:-1] + cut, lengths)])
    return pc.if_else(pa.array(cut > 0), pc.utf8_ltrim_whitespace(rest), rest)


Bytes = npt.NDArray[np.uint8]


def _bounds(texts: pa.Array) -> tuple[Ints, Bytes]:
    """Return texts without trailing white space: their offsets, and their bytes."""
    return text_parts(pc.ascii_rtrim_whitespace(texts))


def _last_line(texts: pa.Array) -> tuple[Ints, Bytes]:
    offsets, data = _bounds(texts)
    ends = np.flatnonzero(data == _NEWLINE) + 1
    # The texts lie in one buffer: of the line breaks up to a text's end, the last one opens its last line.
    before = np.append(0, ends)[np.searchsorted(ends, offsets[1:], side="right")]
    starts = np.maximum(offsets[:-1], before)
    lengths = offsets[1:] - starts
    return offsets_of(lengths), data[ranges(starts, lengths)]


def begins(texts: pa.Array, offsets: Ints, data: Bytes, shortest: int = SHORTEST) -> Flags:
    """Return which texts begin with a prefix, which is not part of a longer word, and have more text after it.

    Args:
        offsets, data: the prefixes.
        shortest: fewest bytes of a prefix.
    """
    bounds, whole = text_parts(texts)
    lengths, starts = np.diff(offsets), bounds[:-1]
    rows = np.flatnonzero((lengths >= shortest) & (np.diff(bounds) > lengths))
    # Compare one byte of each row first: whole texts are compared only where these agree.
    for step in (np.zeros(len(lengths), np.int64), lengths - 1):
        rows = rows[data[(offsets[:-1] + step)[rows]] == whole[(starts + step)[rows]]]
    counts = lengths[rows]
    same = data[ranges(offsets[:-1][rows], counts)] == whole[ranges(starts[rows], counts)]
    rows = rows[sum_rows(same.astype(np.int64), offsets_of(counts)) == counts]
    last, following = data[offsets[1:][rows] - 1], whole[starts[rows] + lengths[rows]]
    # `Name` is not repeated in `Names a river`: a prefix must end where a word ends.
    rows = rows[~(_IN_WORDS[last] & _IN_WORDS[following])]
    prefixed = np.zeros(len(texts), bool)
    prefixed[rows] = True
    return prefixed & ~flags_of(pc.equal(texts, ""))


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
    lengths = list_values(prompt)[0]
    last = end_messages(prompt, -1)
    begun = _speaks(last)
    begun[begun] = ~has_calls(last.filter(pa.array(begun)))
    firsts = [end_messages(answer, 0) for answer in answers]
    if firsts:
        begun &= np.logical_or.reduce([_speaks(first) for first in firsts])
    joined, start = begun & (join and bool(answers)) & (lengths > 1), pc.struct_field(last, "content").fill_null("")
    if joined.any():
        joined &= _only_text(last, "fields") & _only_text(last, "reasoning")
        for first in firsts:
            repeats = begins(pc.struct_field(first, "content"), *text_parts(start))
            joined &= _speaks(first) & _continues(first) & ~repeats
    message = "the prompt ends with an assistant message, the start of the answer, which would become a turn of its own"
    problem = RowProblem(begun & ~joined, "started_answer", "prompt", message, start)
    if not joined.any():
        return prompt, list(answers), problem
    prompt = slice_messages(prompt, np.zeros_like(lengths), lengths - joined)
    return prompt, [_with_start(*pair, start, joined) for pair in zip(answers, firsts, strict=True)], problem


def _speaks(messages: pa.Array) -> Flags:
    return flags_of(pc.equal(pc.struct_field(messages, "role"), "assistant"))


def _only_text(messages: pa.Array, beside: str) -> Flags:
    return flags_of(pc.struct_field(messages, beside).is_null())


def _continues(first: pa.Array) -> Flags:
    fields = pc.struct_field(first, "fields").fill_null(_PLAIN)
    is_text = flags_of(pc.match_substring_regex(fields, _WHOLE)) & ~flags_of(pc.match_substring(fields, '"tokenloom:'))
    return is_text & _only_text(first, "reasoning")


def _with_start(answer: pa.Array, first: pa.Array, start: pa.Array, rows: Flags) -> pa.Array:
    """Return answers whose first message has a start before it, up to whose end nothing of its turn is trained."""
    content = pc.binary_join_element_wise(start, pc.struct_field(first, "content"), "")
    sizes = [pc.binary_length(text).cast(pa.string()) for text in (start, content)]
    before = pc.utf8_slice_codeunits(pc.struct_field(first, "fields").fill_null(_PLAIN), 0, -1)
    named, middle = f', "{RANGES}": {{"content": [[-1, ', ", 0.0], ["
    # The fields are JSON text without its closing brace, so that the ranges can be appended for the column at once.
    fields = pc.binary_join_element_wise(before, named, sizes[0], middle, sizes[0], ", ", sizes[1], ", null]]}}", "")
    return with_first(answer, rows, content=content, fields=fields)
