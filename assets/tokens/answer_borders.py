"""Counts the answers whose prompt is not tokenized in the row as it is alone, as at inference, and the contents that
hold the text of a control token.

There are two causes. A token straddles the border: it holds the end of the prompt and the start of the answer. Or white
space at the end of the prompt is cut apart because a word follows, as GPT-2's tokenizer does with two line breaks. Else
the ids of the prompt are a prefix of the row's: words are cut without looking ahead, and within a word, merges and best
paths on one side of a token's bound do not depend on the other side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.segments import Segments, segments, strip_at_control
from tokenloom.assets.prompts.spans import REASONING, SPACE, SPAN_ROLES, TOOL_CALL, run_before
from tokenloom.assets.stage.forms import FIELDS, FORMS
from tokenloom.assets.stage.names import PROMPTS, TOKENIZERS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.tokens.encode import ContentEncoder, Encoded, count_span_tokens
from tokenloom.errors import StoreError
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.tables.ragged import Ints, flags_of, offsets_of, ranges, row_of, sides, text_array, text_parts

CONTROL_IN_CONTENT = "control_tokens_in_content"
"""Counter: how often the text of a control token occurs in contents."""

SETTING = "tokenizer.control_tokens_in_content"
_AROUND = 20
"""Characters that are shown before and after a control token."""

_POLICIES = {
    "split": "are tokenized as plain text ({setting}: split); if the rows are templated already, map them to text, "
    "with prompt_template.format_type: text and {setting}: keep",
    "keep": "stay control tokens ({setting}: keep); next to the same token, such as an added BOS or EOS, they are "
    "written once",
}


def control_notice(
    manifest: Manifest, policy: str, store: ArtifactStore, upstream: Callable[[str], Manifest]
) -> list[str]:
    """Return a sentence about the control tokens in contents, if there are any that are not rejected.

    Args:
        manifest: that of the stage tokens.
        policy: what happens to them, the value of `SETTING`.
        upstream: returns the manifest of an earlier stage.
    """
    count = manifest.counters.get(CONTROL_IN_CONTENT)
    if not count or policy not in _POLICIES:
        return []
    example = _example(manifest, store, upstream)
    return [f"{count:,} texts of control tokens in contents{example} {_POLICIES[policy].format(setting=SETTING)}"]


def _example(manifest: Manifest, store: ArtifactStore, upstream: Callable[[str], Manifest]) -> str:
    """Return an example of a control token in a content, with its place; "" if the prompts are no longer stored."""
    index = next((at for at, chunk in enumerate(manifest.chunks) if (chunk.counters or {}).get(CONTROL_IN_CONTENT)), 0)
    try:
        chunk, control = upstream(PROMPTS).chunks[index], upstream(TOKENIZERS).facts["control"]
        prompts = store.objects.get(chunk.output)
    except (StoreError, IndexError):
        return ""
    token = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))
    for texts in sides(prompts).values():
        cut = segments(texts)
        matches = flags_of(pc.match_substring_regex(cut.text, token.pattern)) & ~cut.control
        for at in np.flatnonzero(matches)[:1]:
            text = cut.text[at].as_py()
            start, end = next(token.finditer(text)).span()
            place = chunk.place(texts[ROW][int(cut.row[at])].as_py())
            shown = text[max(start - _AROUND, 0) : end + _AROUND]
            return f", such as {text[start:end]} in {place} ({shown!r}),"
    return ""


JOINED, RECUT, SPACED = "answers_joined", "answers_recut", "answers_spaced"
"""Counters: answers whose first token straddles the border; answers that change how the white space before them is
tokenized; and for prompts that end before this white space, answers that do not follow their prompt's tokens."""

_SAID = np.isin(SPAN_ROLES, ["answer", "assistant", REASONING, TOOL_CALL])
_MAY_CHANGE = SPACE | (np.arange(256) >= 0xC0)
_LONGEST = 16
"""Most white space at the end of a prompt that is looked at, in bytes."""


_PARTS = {
    JOINED: "{:,} begin within a token that holds the end of the prompt",
    RECUT: "{:,} change how the white space before them is tokenized",
    SPACED: "{:,} come after white space that is neither in the generation prompt nor trained",
}
_REMEDIES = {
    "spaced": "put that white space into the generation prompt, or with the answer into {% generation %}",
    "chat": "let the chat template's text before answers end with a control token or one line break, and strip white "
    "space from answers",
    "marks": "move the white space before {% generation %} into it, and strip white space from answers",
    **{form.name: form.border for form in (*FORMS.values(), FIELDS) if form.border},
}


def border_notice(counters: Mapping[str, int], written: str, spaced: bool) -> str | None:
    """Return how many answers do not follow the tokens of their prompt, and a remedy; None if all do.

    Args:
        written: what puts the prompt before the answer, a key of `_REMEDIES`.
        spaced: whether a chat template's generation prompt ends before white space that rows have before answers.
    """
    counts = broken(counters, spaced)
    if not counts:
        return None
    parts = ", ".join(_PARTS[name].format(count) for name, count in counts.items())
    return (
        f"{sum(counts.values()):,} answers do not follow the tokens that their prompt has at inference: {parts}; "
        f"{_REMEDIES['spaced' if spaced else written]}"
    )


def broken(counters: Mapping[str, int], spaced: bool) -> dict[str, int]:
    """Return the counters of answers that do not follow their prompt's tokens, without zeros."""
    return {name: counters[name] for name in ((SPACED,) if spaced else (JOINED, RECUT)) if counters.get(name)}


@dataclass(frozen=True)
class Borders:
    """Where answers start within a segment, int64 or bool [borders].

    Args:
        place: positions in the data.
        row: indices of rows.
        space: how much white space comes before, in bytes.
        start, end: the last token that starts before the border.
        joined, recut, spaced: what the counters count.
    """

    place: Ints
    row: Ints
    space: Ints
    start: Ints
    end: Ints
    joined: np.ndarray
    recut: np.ndarray
    spaced: np.ndarray

    @classmethod
    def of(cls, cut: Segments, encoded: Encoded, encoder: ContentEncoder, data: np.ndarray, ending: Ints) -> Borders:
        """Return the borders of a chunk.

        Args:
            data: its text, uint8.
            ending: the spans that end within a token, as `count_span_tokens` returns them.
        """
        trained = cut.spans.weight > 0
        said = trained & _SAID[cut.spans.role]
        begins = np.zeros(len(trained), bool)
        # trained text after masked text; or, where all is trained, the first text that the model says
        begins[1:] = (trained[1:] & ~trained[:-1]) | (said[1:] & ~said[:-1])
        begins[cut.first] = False
        span = np.flatnonzero(begins)
        segment = np.searchsorted(cut.first, span, side="right") - 1
        border = cut.spans.start[span]
        inside = (border > cut.start[segment]) & (border < cut.end[segment])
        span, segment, place = span[inside], segment[inside], border[inside]
        within = np.zeros(len(cut.spans.start), bool)
        within[ending] = True
        start, end = _last_before(cut, encoded, place, segment, within[span - 1])
        space = run_before(data, place, cut.start[segment])
        joined = end > place
        recut = _recut(cut, encoder, data, place, segment) & ~joined
        follows = (end <= place - space) | (joined & (start == place - space))
        return cls(place, cut.row[segment], space, start, end, joined, recut, ~follows)

    def counters(self) -> dict[str, int]:
        """Return the counters."""
        return {JOINED: int(self.joined.sum()), RECUT: int(self.recut.sum()), SPACED: int(self.spaced.sum())}


def border_notes(prompts: pa.Table, encoder: ContentEncoder, spaced: bool) -> dict[int, list[str]]:
    """Return what `broken` counts, in words, by row position; nothing for pre-tokenized rows."""
    if "text" not in prompts.column_names:
        return {}
    cut = strip_at_control(segments(prompts), encoder.strips)
    data, rows = text_parts(prompts["text"])[1], prompts[ROW].to_numpy()
    encoded = encoder.encode(cut)
    borders = Borders.of(cut, encoded, encoder, data, count_span_tokens(cut, encoded)[2])
    notes: dict[int, list[str]] = {}
    for at in np.flatnonzero(borders.spaced if spaced else borders.joined | borders.recut).tolist():
        place, shared = borders.place[at], borders.joined[at] and not spaced
        first, last = (borders.start[at], borders.end[at]) if shared else (place - borders.space[at], place)
        what = (
            "is neither in the prompt nor trained" if spaced
            else "holds the end of the prompt and the start of the answer" if shared
            else "is tokenized differently before the answer"
        )  # fmt: skip
        note = f"{bytes(data[first:last]).decode(errors='replace')!r} {what}"
        notes.setdefault(int(rows[borders.row[at]]), []).append(note)
    return notes


def _last_before(cut: Segments, encoded: Encoded, border: Ints, segment: Ints, within: np.ndarray) -> tuple[Ints, Ints]:
    """Return int64: where the last token that starts before each border starts, and where it ends; without one, both
    are the start of the segment. In an exact segment, both are the border if it ends there.

    Args:
        within: bool, whether the border is within a token; valid in exact segments.
    """
    first, last = border.copy(), border.copy()
    exact = encoded.exact[segment]
    if (places := np.flatnonzero(within & exact)).size:
        at, of = border[places], segment[places]
        # counted back from the segment's end: its first token can be a byte longer than its text
        position = encoded.bytes.before(encoded.offsets[of + 1]) - cut.end[of] + at
        token, _ = encoded.bytes.reaching(position)
        before, after = (encoded.bytes.before(token - side) for side in (1, 0))
        first[places], last[places] = np.maximum(at + before - position, cut.start[of]), at + after - position
    if not exact.all() and len(encoded.places):
        base = cut.start[~encoded.exact][row_of(np.diff(encoded.offsets)[~encoded.exact])]
        start, end = (encoded.places + base[:, None]).T
        before = np.maximum(np.searchsorted(start, border[~exact]) - 1, 0)
        nothing = cut.start[segment[~exact]]
        # no token of this segment starts before the border
        none = (start[before] >= border[~exact]) | (start[before] < nothing)
        first[~exact] = np.where(none, nothing, start[before])
        last[~exact] = np.where(none, nothing, np.maximum.accumulate(end)[before])
    return first, last


def _recut(cut: Segments, encoder: ContentEncoder, data: np.ndarray, border: Ints, segment: Ints) -> np.ndarray:
    """Return bool: whether the end of the prompt is tokenized differently because of the answer's first character.

    Only white space before the answer can do that, two characters of it unless the answer begins with more, and
    combining marks at its start.
    """
    lead = data[border]
    doubtful = SPACE[data[border - 1]] & (SPACE[data[border - 2]] | _MAY_CHANGE[lead]) | (lead & 0xFE == 0xCC)
    if not doubtful.any():
        return doubtful
    border, lead, first = border[doubtful], lead[doubtful], cut.start[segment[doubtful]]
    start = border - run_before(data, border, np.maximum(first, border - _LONGEST))
    start = np.maximum(start - 1, first)  # and the character before
    for _ in range(3):
        # back to the first byte of a character of up to four
        start -= (start > first) & ((data[start] & 0xC0) == 0x80)
    before = _texts(data, start, border - start)
    # the answer's first character: its lead byte tells how many bytes it has
    after = _texts(data, border, 1 + (lead >= 0xC0) + (lead >= 0xE0).astype(np.int64) + (lead >= 0xF0))
    # few different ends and starts occur, so each pair of them is tokenized once
    pairs = before.indices.to_numpy().astype(np.int64) * len(after.dictionary) + after.indices.to_numpy()
    different_pairs, which = np.unique(pairs, return_inverse=True)
    ends, answers = before.dictionary.to_pylist(), after.dictionary.to_pylist()
    parts = [divmod(pair, len(answers)) for pair in different_pairs.tolist()]
    doubtful[doubtful] = np.array([encoder.recuts(ends[end], answers[answer]) for end, answer in parts], bool)[which]
    return doubtful


def _texts(data: np.ndarray, start: Ints, sizes: Ints) -> pa.DictionaryArray:
    return text_array(offsets_of(sizes), data[ranges(start, sizes)]).dictionary_encode()
