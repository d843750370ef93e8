"""Finds the answers of a chunk and their stops in spans, and counts what truncation took from them.

An answer is the trained text of one message, column or text, with the stop after it. Its stop is the control tokens
that end it, else the text that the template writes after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tokenloom.assets.prompts.spans import ROLES, FlatSpans
from tokenloom.assets.sequences.documents import Documents
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges, row_of

ANSWERS, CUT, WITHOUT_STOP, EMPTIED = "answers", "answers_cut", "answers_without_stop", "prompts_emptied"
TRAINED_OF = "trained_tokens."
"""Start of the counters of trained tokens; a role or `turn_<number>` follows."""

LATER_TURNS = 10
"""Turns from this number on are counted together."""

_TEMPLATE, _USER = ROLES.index("template"), ROLES.index("user")
_QUESTIONS = [ROLES.index(role) for role in ("user", "input")]
_OF_ANSWERS = [ROLES.index(role) for role in ("answer", "assistant", "text")]
_SPEAKERS = [ROLES.index(role) for role in ("system", "user", "assistant", "tool")]


@dataclass(frozen=True)
class Answers:
    """The answers of a chunk, int64 [answers] each. Tokens are counted over the whole chunk.

    Args:
        row: the index of the row.
        first: the answer's first span.
        start, stop, end: the first token, the first token of the stop, and the end; without a stop, `stop` is `end`.
    """

    row: Ints
    first: Ints
    start: Ints
    stop: Ints
    end: Ints


def find_answers(spans: FlatSpans) -> Answers:
    """Return the answers of a chunk.

    Adjacent trained spans of one role are one answer, unless they have different messages. A final EOS belongs to the
    text before it, whatever its role.

    Args:
        spans: the spans in tokens; they cover every row.
    """
    trained = spans.weight > 0
    if not trained.any():
        return Answers(*(np.zeros(0, np.int64) for _ in range(5)))
    opens, closes = _bounds(spans, trained)
    first = np.flatnonzero(opens)
    last = _latest(trained)[np.append(first[1:], len(trained)) - 1]
    stop = np.where(spans.role[first] == _TEMPLATE, last + ~closes[last], _stops(spans, trained, opens, first, last))
    chosen = (stop <= last) | np.isin(spans.role[first], _OF_ANSWERS)
    first, stop, last = first[chosen], stop[chosen], last[chosen]
    start, end = token_bounds(spans)
    stops_at = np.where(stop > last, end[last], start[np.minimum(stop, last)])
    return Answers(row_of(spans.counts)[first], first, start[first], stops_at, end[last])


def _bounds(spans: FlatSpans, trained: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each span is the first of a trained text, and whether it is a final EOS; both bool [spans]."""
    row, named = row_of(spans.counts), spans.message >= 0
    joined = np.zeros(len(row) + 1, bool)  # whether a span and the one before are trained, in one row
    joined[1:-1] = trained[1:] & trained[:-1] & (row[1:] == row[:-1])
    closes = trained & spans.control & ~named & joined[:-1] & ~joined[1:]
    opens = trained & ~joined[:-1]
    opens[1:] |= trained[1:] & (spans.role[1:] != spans.role[:-1]) & ~closes[1:]
    before = np.append(-1, _latest(named & trained)[:-1])
    opens |= trained & named & (before >= _latest(opens)) & (spans.message[before] != spans.message)
    return opens, closes


def _stops(spans: FlatSpans, trained: np.ndarray, opens: np.ndarray, first: Ints, last: Ints) -> Ints:
    """Return the first span of the stop of each trained text, or the span after its last one.

    The stop starts at the control tokens after the last content. Without any, it is the text after the content.
    """
    control, named = trained & spans.control, spans.message >= 0
    runs = control & (opens | ~np.append(False, control[:-1]))
    final = _latest(control)[last]
    by_control = (final >= first) & (_latest(named & trained)[last] <= final)
    text = (last > first) & (~named[last] | (spans.message[last] == spans.message[last - 1]))
    return np.where(by_control, _latest(runs)[final], last + ~text)


def token_bounds(spans: FlatSpans) -> tuple[Ints, Ints]:
    """Return the first token and the end of each span, counted over the whole chunk; both int64 [spans]."""
    row = row_of(spans.counts)
    sizes = np.zeros(len(spans.counts), np.int64)
    filled = spans.counts > 0
    sizes[filled] = spans.end[spans.offsets[1:][filled] - 1]
    base = offsets_of(sizes)[row]
    return base + spans.start, base + spans.end


def mask_displaced_stops(documents: Documents, answers: Answers, spans: FlatSpans) -> None:
    """Mask each stop that no longer follows the token that it follows in its row; changes `documents`."""
    if documents.origin is None:
        return
    starts, ends = token_bounds(spans)
    gone = np.ones((int(ends[-1]) if len(ends) else 0) + 1, np.int64)
    gone[documents.origin + 1] = 0
    gone[0] = 0
    gone = np.cumsum(gone)  # the tokens removed before each one
    sizes = answers.end - answers.stop
    stops = ranges(answers.stop, sizes)
    before = np.maximum(answers.stop - 1, starts[spans.offsets[answers.row]])
    displaced = stops[gone[stops + 1] > np.repeat(gone[before], sizes)]
    if len(displaced):
        masked = np.zeros(len(gone), bool)
        masked[displaced] = True
        documents.weights[masked[documents.origin]] = 0.0


def count_answers(documents: Documents, answers: Answers, spans: FlatSpans) -> dict[str, int]:
    """Return counters of answers, and of trained tokens by role and turn, for the documents that became sequences.

    - `answers`: answers with a trained token in the sequences.
    - `answers_cut`: answers of rows in the sequences that lost trained tokens.
    - `answers_without_stop`: those of `answers` whose row has a stop that is not trained as a whole.
    - `prompts_emptied`: those of `answers` whose question lost all tokens.
    - `trained_tokens.<role>`, `trained_tokens.turn_<number>`: trained tokens; turns are those of the whole row.

    Args:
        documents: after truncation and splitting.
        answers, spans: those of the chunk of tokens.
    """
    starts, ends = token_bounds(spans)
    kept = _Kept.of(documents, int(ends[-1]) if len(ends) else 0)
    trained = spans.weight > 0
    by_span = np.where(trained, kept.trained(starts, ends), 0)
    left = kept.trained(answers.start, answers.end)
    of_row = starts[spans.offsets[answers.row]], ends[spans.offsets[answers.row + 1] - 1]
    in_sequences, present = left > 0, kept.present(*of_row) > 0
    unstopped = kept.trained(answers.stop, answers.end) < answers.end - answers.stop
    emptied = in_sequences & _emptied(spans, answers, kept.present(starts, ends))
    return {
        ANSWERS: int(in_sequences.sum()),
        CUT: int((present & (left < answers.end - answers.start)).sum()),
        WITHOUT_STOP: int((in_sequences & unstopped).sum()),
        EMPTIED: int(emptied.sum()),
        **_by_role_and_turn(spans, by_span),
    }


def of_answers(name: str) -> bool:
    """Return whether `count_answers` counts a counter."""
    return name in (ANSWERS, CUT, WITHOUT_STOP, EMPTIED) or name.startswith(TRAINED_OF)


def unstopped_fraction(counters: Mapping[str, int]) -> float:
    """Return the fraction of the answers in the sequences that end without their stop."""
    return counters.get(WITHOUT_STOP, 0) / max(counters.get(ANSWERS, 0), 1)


def unstopped_warning(config: PipelineConfig, counters: Mapping[str, int]) -> str | None:
    """Return a warning if more answers lack their stop than `validation.max_unstopped_fraction` allows, else None."""
    found, allowed = unstopped_fraction(counters), config.validation.max_unstopped_fraction
    if found <= allowed:
        return None
    longest, strategy = config.tokenizer.max_length, config.length.strategy or "smart"
    shorten = "" if strategy == "smart" else " `length.strategy: smart`, which shortens prompts first, or"
    return (
        f"warning: {counters[WITHOUT_STOP]:,} of {counters[ANSWERS]:,} answers ({found:.2%}, above "
        f"validation.max_unstopped_fraction {allowed:.2%}) lost their end and stop at max_length {longest:,}, so the "
        f"model does not learn to end them; raise tokenizer.max_length, or set{shorten} `length.strategy: drop`"
    )


class _Kept:
    """Counts the tokens of a chunk that are in its documents; `whole` if they are all there, unchanged."""

    def __init__(self, whole: bool, present: Ints, trained: Ints):
        self._whole, self._present, self._trained = whole, present, trained

    @classmethod
    def of(cls, documents: Documents, tokens: int) -> _Kept:
        """Count the tokens of documents, of a chunk with this number of tokens."""
        if documents.origin is None:
            return cls(True, np.zeros(0, np.int64), np.zeros(0, np.int64))
        return cls(
            False,
            _counts(documents.origin, tokens),
            _counts(documents.origin[documents.weights > 0], tokens),
        )

    def present(self, start: Ints, end: Ints) -> Ints:
        """Return how many tokens of each range are in a document."""
        return end - start if self._whole else self._present[end] - self._present[start]

    def trained(self, start: Ints, end: Ints) -> Ints:
        """Return how many tokens of each range are trained; all tokens of the ranges are trained in the chunk."""
        return end - start if self._whole else self._trained[end] - self._trained[start]


def _counts(places: Ints, tokens: int) -> Ints:
    """Return int64 [tokens + 1]: how many of the places are before each token."""
    found = np.zeros(tokens + 1, np.int64)
    found[places + 1] = 1
    return np.cumsum(found, out=found)


def _emptied(spans: FlatSpans, answers: Answers, present: Ints) -> np.ndarray:
    """Return bool [answers]: whether no token of the answer's question is left.

    The question is the last user message between the answer before and this one; for columns, all inputs.

    Args:
        present: int64 [spans], the number of tokens in the documents.
    """
    empty = np.zeros(len(answers.row), bool)
    content = (spans.weight == 0) & (spans.message >= 0) & ~spans.control
    asked = np.flatnonzero(content & np.isin(spans.role, _QUESTIONS))
    if not len(asked) or not len(empty):
        return empty
    row = row_of(spans.counts)[asked]
    owner = np.searchsorted(answers.first, asked)
    answered = owner < len(empty)
    answered &= answers.row[np.minimum(owner, len(empty) - 1)] == row
    asked, owner = asked[answered], owner[answered]
    user, message = spans.role[asked] == _USER, spans.message[asked].astype(np.int64)
    last = np.full(len(empty), -1, np.int64)
    np.maximum.at(last, owner[user], message[user])
    counted = ~user | (message == last[owner])
    asked, owner = asked[counted], owner[counted]
    left = np.bincount(owner, present[asked], len(empty))
    return (np.bincount(owner, minlength=len(empty)) > 0) & (left == 0)


def _by_role_and_turn(spans: FlatSpans, trained: Ints) -> dict[str, int]:
    """Return the number of trained tokens by role, and in conversations by turn, without zeros.

    Args:
        trained: int64 [spans], the number of trained tokens.
    """
    roles = np.bincount(spans.role, trained, len(ROLES)).astype(np.int64).tolist()
    user = (spans.role == _USER) & (spans.message >= 0) & ~spans.control
    asks = user.copy()
    asks[1:] &= ~(user[:-1] & (spans.message[1:] == spans.message[:-1]) & (np.diff(row_of(spans.counts)) == 0))
    so_far = np.cumsum(asks)
    turn = so_far - np.repeat(np.append(0, so_far)[spans.offsets[:-1]], spans.counts)
    spoken = np.isin(spans.role, _SPEAKERS)
    number = np.clip(turn[spoken], 1, LATER_TURNS)
    turns = np.bincount(number, trained[spoken], LATER_TURNS + 1).astype(np.int64).tolist()
    names = [*(f"turn_{turn}" for turn in range(LATER_TURNS)), f"turn_{LATER_TURNS}_and_later"]
    counts = {**dict(zip(ROLES, roles, strict=True)), **dict(zip(names, turns, strict=True))}
    return {f"{TRAINED_OF}{name}": count for name, count in counts.items() if count}


def _latest(flags: np.ndarray) -> Ints:
    """Return the last place up to each one where the flag is set, else -1; int64, the shape of `flags`."""
    return np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1)) if len(flags) else np.zeros(0, np.int64)
