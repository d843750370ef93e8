"""Counts the answers whose prompt is not tokenized in the row as it is alone, as at inference.

There are two causes. A token straddles the border: it holds the end of the prompt and the start of the answer. Or white
space at the end of the prompt is cut apart because a word follows, as GPT-2's tokenizer does with two line breaks. Else
the ids of the prompt are a prefix of the row's: words are cut without looking ahead, and within a word, merges and best
paths on one side of a token's bound do not depend on the other side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.answer_border import SPACE, run_before
from tokenloom.assets.prompts.segments import Segments, segments, strip_at_control
from tokenloom.assets.prompts.spans import ROLES
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.tokens.encode import ContentEncoder, Encoded
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges, row_of, text_array, text_parts

JOINED, BY_SPACE, RECUT = "answers_joined", "answers_joined_by_space", "answers_recut"
"""Counters: answers whose first token straddles the border; those of them where it has only white space of the prompt;
and answers that change how the white space before them is tokenized."""

_SAID = [ROLES.index("answer"), ROLES.index("assistant")]
_LONGEST = 16
"""Most white space at the end of a prompt that is looked at, in bytes."""


_PARTS = {
    JOINED: "{:,} begin within a token that holds the end of the prompt",
    RECUT: "{:,} change how the white space before them is tokenized",
}
_REMEDIES = {
    "chat": "let the chat template's text before answers end with a control token or one line break, and strip white "
    "space from answers",
    "marks": "move the white space before {% generation %} into it, and strip white space from answers",
    "segments": "move the white space before trained segments into them",
    "completion": "end prompts with a space, a line break or a control token, and strip white space from completions",
    "fields": "write a space, a line break or a control token before {answer}, and strip white space from answers",
}


def border_notice(counters: Mapping[str, int], written: str, spaced: bool) -> str | None:
    """Return how many answers do not follow the tokens of their prompt, and a remedy; None if all do.

    Args:
        written: what puts the prompt before the answer, a key of `_REMEDIES`.
        spaced: as `prompts_end_before_space` returns it.
    """
    found = broken(counters, spaced)
    if not found:
        return None
    parts = ", ".join(_PARTS[name].format(count) for name, count in found.items())
    return (
        f"{sum(found.values()):,} answers do not follow the tokens that their prompt has at inference: {parts}; "
        f"{_REMEDIES[written]}"
    )


def broken(counters: Mapping[str, int], spaced: bool) -> dict[str, int]:
    """Return the counters that are not 0, if `spaced` without answers that share a token with white space alone."""
    found = {JOINED: counters.get(JOINED, 0) - spaced * counters.get(BY_SPACE, 0), RECUT: counters.get(RECUT, 0)}
    return {name: count for name, count in found.items() if count}


def prompts_end_before_space(certificate: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a chat template's generation prompt ends before white space that rows have before answers."""
    prompts = [found for found in certificate if found["name"] == "generation prompt"]
    return any(found["found"].startswith("answers start") and not found["evidence"][-1:].isspace() for found in prompts)


def count_borders(cut: Segments, encoded: Encoded, encoder: ContentEncoder, data: np.ndarray) -> dict[str, int]:
    """Return the counters of a chunk; `data` is its text, uint8."""
    border, segment = answer_borders(cut)
    start = straddling(cut, encoded, border, segment)[0]
    joined = start < border
    spaced = run_before(data, border, start) == border - start
    recut = _recut(cut, encoder, data, border, segment) & ~joined
    return {JOINED: int(joined.sum()), BY_SPACE: int((joined & spaced).sum()), RECUT: int(recut.sum())}


def border_notes(prompts: pa.Table, encoder: ContentEncoder, spaced: bool) -> dict[int, list[str]]:
    """Return what the counters count, in words, by row position; `spaced` is as for `broken`."""
    cut = strip_at_control(segments(prompts), encoder.strips)
    data, rows = text_parts(prompts["text"])[1], prompts[ROW].to_numpy()
    border, segment = answer_borders(cut)
    start, end = straddling(cut, encoder.encode(cut), border, segment)
    recut = _recut(cut, encoder, data, border, segment) & (start == border)
    spaces = border - run_before(data, border, cut.start[segment])
    start = np.where(spaced & (spaces <= start), border, start)
    notes: dict[int, list[str]] = {}
    for at in np.flatnonzero((start < border) | recut).tolist():
        first, last = (spaces[at], border[at]) if recut[at] else (start[at], end[at])
        text = repr(bytes(data[first:last]).decode(errors="replace"))
        note = f"{text} is tokenized differently before the answer" if recut[at] else f"{text} is prompt and answer"
        notes.setdefault(int(rows[cut.row[segment[at]]]), []).append(note)
    return notes


def answer_borders(cut: Segments) -> tuple[Ints, Ints]:
    """Return where answers start within a segment, and the segments, int64.

    An answer starts where trained text follows masked text; and, if all text is trained, where the role changes.
    """
    trained = cut.spans.weight > 0
    said = trained & np.isin(cut.spans.speaker, _SAID)
    begins = np.zeros(len(trained), bool)
    begins[1:] = (trained[1:] & ~trained[:-1]) | (said[1:] & ~said[:-1])
    begins[cut.first] = False
    border = cut.spans.start[begins]
    segment = np.searchsorted(cut.first, np.flatnonzero(begins), side="right") - 1
    inside = (border > cut.start[segment]) & (border < cut.end[segment])
    return border[inside], segment[inside]


def straddling(cut: Segments, encoded: Encoded, border: Ints, segment: Ints) -> tuple[Ints, Ints]:
    """Return int64: where the token that straddles each border starts and ends; twice the border if there is none."""
    first, last = border.copy(), border.copy()
    exact = encoded.exact[segment]
    at, of = border[exact], segment[exact]
    position = encoded.bytes.before(encoded.offsets[of + 1]) - cut.end[of] + at
    token, whole = encoded.bytes.reaching(position)
    before, after = (encoded.bytes.before(np.maximum(token - side, 0)) for side in (1, 0))
    first[exact] = np.where(whole, at, np.maximum(at - (position - before), cut.start[of]))
    last[exact] = np.where(whole, at, at + (after - position))
    if not exact.all() and len(encoded.places):
        base = cut.start[~encoded.exact][row_of(np.diff(encoded.offsets)[~encoded.exact])]
        start, end = (encoded.places + base[:, None]).T
        at, end = border[~exact], np.maximum.accumulate(end)
        before = np.maximum(np.searchsorted(start, at) - 1, 0)
        straddles = (start[before] < at) & (end[before] > at)
        first[~exact], last[~exact] = np.where(straddles, start[before], at), np.where(straddles, end[before], at)
    return first, last


def _recut(cut: Segments, encoder: ContentEncoder, data: np.ndarray, border: Ints, segment: Ints) -> np.ndarray:
    """Return bool: whether the prompt ends with white space that is tokenized differently if a word follows."""
    spaced = (
        (border - cut.start[segment] > 1) & SPACE[data[border - 1]] & SPACE[data[border - 2]] & ~SPACE[data[border]]
    )
    if not spaced.any():
        return spaced
    border, first = border[spaced], cut.start[segment[spaced]]
    start = border - run_before(data, border, np.maximum(first, border - _LONGEST))
    start = np.maximum(start - 1, first)  # and the character before
    for _ in range(3):
        start -= (start > first) & ((data[start] & 0xC0) == 0x80)
    sizes = border - start
    ends = text_array(offsets_of(sizes), data[ranges(start, sizes)]).dictionary_encode()
    differs = np.array([encoder.recuts(text) for text in ends.dictionary.to_pylist()], bool)
    spaced[spaced] = differs[ends.indices.to_numpy()]
    return spaced
