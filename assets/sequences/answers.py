"""Documents: a chunk's rows of tokens as flat arrays. Finds their answers and stops, and counts what truncation took.

An answer is the trained text of one message, column or text, with the stop after it. Its stop is the control tokens
that end it, else the text that the template writes after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import CONTENT, IS_PART, PARTS, REASONING, SPAN_ROLES, STOP, TOOL_CALL, FlatSpans
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.ragged import Ints, list_parts, offsets_of, ranges, row_of, sides
from tokenloom.resources.tables.sequence_schema import PER_TOKEN


def row_lengths(table: pa.Table) -> Ints:
    """Return int64 [rows]: the number of tokens of each row of a chunk; for pairs, of the longer side."""
    return np.max([np.diff(list_parts(side["input_ids"])[0]) for side in sides(table).values()], axis=0)


@dataclass(frozen=True)
class Documents:
    """Rows of tokens, flat.

    Args:
        ids: uint16 or uint32 [tokens].
        weights: float32 [tokens], training weights; 0 means not trained.
        lengths: int64 [documents].
        rows: int32 [documents], the raw row of each document.
        values: float32 [tokens] each, other numbers per token, by name.
        origin: int64 [tokens], the place of each token among the chunk's tokens; None: the documents are the chunk.
    """

    ids: np.ndarray
    weights: np.ndarray
    lengths: Ints
    rows: np.ndarray
    origin: Ints | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, table: pa.Table, spans: FlatSpans) -> Documents:
        """Return the rows of a chunk of tokens; `spans` are its spans."""
        offsets, ids = list_parts(table["input_ids"])
        weights = np.repeat(spans.weight, spans.end - spans.start)
        names = (name for name in table.column_names if name.startswith(PER_TOKEN))
        values = {name: list_parts(table[name])[1].to_numpy() for name in names}
        return cls(ids.to_numpy(), weights, np.diff(offsets), table[ROW].to_numpy(), values=values)

    def are_trained(self) -> np.ndarray:
        """Return bool [documents]: whether the document has a trained token."""
        trained, nonempty = np.zeros(len(self.lengths), bool), self.lengths > 0
        if nonempty.any():
            # reduceat gives the next document's first value for an empty one, so these are left out
            trained[nonempty] = np.maximum.reduceat(self.weights, offsets_of(self.lengths)[:-1][nonempty]) > 0
        return trained

    def select(self, documents: np.ndarray) -> Documents:
        """Return the documents for which the flags, bool [documents], are true."""
        if documents.all():
            return self
        index = np.flatnonzero(np.repeat(documents, self.lengths))
        return self.take(index, self.lengths[documents], self.rows[documents])

    def take(self, index: Ints, lengths: Ints, rows: np.ndarray) -> Documents:
        """Return new documents of the tokens at `index`, int64 [tokens], with these lengths and raw rows."""
        origin = index if self.origin is None else self.origin[index]
        values = {name: numbers[index] for name, numbers in self.values.items()}
        return Documents(self.ids[index], self.weights[index], lengths, rows, origin, values)


ANSWERS, CUT, WITHOUT_STOP, EMPTIED = "answers", "answers_cut", "answers_without_stop", "prompts_emptied"
TRAINED_OF = "trained_tokens."
"""Start of the counters of trained tokens; a role, a part of answers or `turn_<number>` follows."""

LATER_TURNS = 10
"""Turns from this number on are counted together."""

GLUE = 2
"""Most tokens of text before a control token of a stop, such as the line break in `<|im_end|>\\n<|endoftext|>`."""

_TEMPLATE, _USER = SPAN_ROLES.index("template"), SPAN_ROLES.index("user")
_QUESTIONS = [SPAN_ROLES.index(role) for role in ("user", "input")]
_OF_ANSWERS = [SPAN_ROLES.index(role) for role in ("answer", "assistant", "text")]
_SPEAKERS = [SPAN_ROLES.index(role) for role in ("system", "user", "assistant", "tool")]
_PARTS = [SPAN_ROLES.index(part) for part in PARTS]
_REASONING, _CALL, _CONTENT, _STOP = (SPAN_ROLES.index(part) for part in (REASONING, TOOL_CALL, CONTENT, STOP))


@dataclass(frozen=True)
class Answers:
    """The answers of a chunk, int64 [answers] each. Tokens are counted over the whole chunk.

    Args:
        row: the index of the row.
        first: the answer's first span.
        start, stop, end: the first token, the first token of the stop, and the end; without a stop, `stop` is `end`.
        trained: the number of trained tokens: all, but for parts that weights by kind mask.
        spans: the trained spans that they were found in.
    """

    row: Ints
    first: Ints
    start: Ints
    stop: Ints
    end: Ints
    trained: Ints
    spans: _Trained


def find_answers(spans: FlatSpans) -> Answers:
    """Return the answers of a chunk.

    Adjacent trained spans of one role are one answer, unless they have different messages. A final EOS belongs to the
    text before it, for any role. Parts of an answer that weights by kind mask do not end it.

    Args:
        spans: the spans in tokens; they cover every row.
    """
    trained = _Trained.of(spans)
    opens, closes = trained.bounds()
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(opens))[: len(first)] - 1
    stop = np.where(trained.role[first] == _TEMPLATE, last + ~closes[last], trained.stops(opens, first, last))
    chosen = (stop <= last) | np.isin(trained.role[first], _OF_ANSWERS)
    first, stop, last = first[chosen], stop[chosen], last[chosen]
    end = trained.end[last]
    stops_at = np.where(stop > last, end, trained.start[np.minimum(stop, last)])
    counts = offsets_of(trained.end - trained.start)
    sizes = counts[last + 1] - counts[first]
    return Answers(trained.row[first], trained.place[first], trained.start[first], stops_at, end, sizes, trained)


@dataclass(frozen=True)
class _Trained:
    """The trained spans of a chunk.

    Args:
        place: int64 [spans], their indices among all spans.
        row: int64 [spans], their rows.
        start, end: int64 [spans], in tokens, counted over the whole chunk.
        role: uint8 [spans], `speaker` of `FlatSpans`.
        follows: bool [spans], whether only masked parts of answers are between the span before and this one.
        part, message, control: `role`, `message` and `control` of `FlatSpans`.
    """

    place: Ints
    row: Ints
    start: Ints
    end: Ints
    role: np.ndarray
    part: np.ndarray
    message: np.ndarray
    control: np.ndarray
    follows: np.ndarray

    @classmethod
    def of(cls, spans: FlatSpans) -> _Trained:
        place = np.flatnonzero(spans.weight > 0)
        # counts masked spans outside of answers: equal counts mean that only masked parts are between two trained spans
        others = np.cumsum((spans.weight <= 0) & ~IS_PART[spans.role])[place]
        follows = np.diff(others, prepend=-1) == 0
        sizes = np.zeros(len(spans.counts), np.int64)
        filled = spans.counts > 0
        sizes[filled] = spans.end[spans.offsets[1:][filled] - 1]
        row = row_of(spans.counts)[place]
        base = offsets_of(sizes)[row]
        of_spans = (column[place] for column in (spans.speaker, spans.role, spans.message, spans.control))
        return cls(place, row, base + spans.start[place], base + spans.end[place], *of_spans, follows=follows)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each span is the first of a trained text, and whether it is a final EOS; both bool [spans]."""
        named, row, message = self.message >= 0, self.row, self.message
        joined = np.zeros(len(row) + 1, bool)  # whether a span follows the one before in its row
        joined[1:-1] = self.follows[1:] & (np.diff(row) == 0)
        # an EOS belongs to no message and ends the row's trained text
        closes = self.control & ~named & joined[:-1] & ~joined[1:]
        opens = ~joined[:-1]
        opens[1:] |= (self.role[1:] != self.role[:-1]) & ~closes[1:]
        # spans without a message, such as a stop, are between those of one; the last one that has a message decides
        before = np.append(-1, _latest(named)[:-1])[: len(row)]
        opens |= named & (before >= _latest(opens)) & (message[before] != message)
        return opens, closes

    def within(self) -> np.ndarray:
        """Return bool [spans]: whether the span is reasoning, a tool call, or the text after reasoning."""
        after = np.append(False, self.part[:-1] == _REASONING)[: len(self.part)]
        return after | np.isin(self.part, (_REASONING, _CALL))

    def stops(self, opens: np.ndarray, first: Ints, last: Ints) -> Ints:
        """Return the first span of the stop of each trained text, or the span after its last one.

        The stop is the control tokens after the last content, with texts of at most `GLUE` tokens before each. Without
        control tokens, it is the text after the content. Reasoning, the text after it, and tool calls are content.

        If weights by kind divide answers, it is what they call the stop.

        Args:
            opens: bool [spans], as `bounds` returns it.
            first, last: int64 [texts], the spans of each text.
        """
        control, named = self.control, self.message >= 0
        before_control = np.append(control & ~opens, False)[1:]
        ending = control | (before_control & ~opens & ~self.within() & (self.end - self.start <= GLUE))
        runs = ending & (opens | ~np.append(False, ending)[:-1])
        final = _latest(control)[last]
        # only control tokens after the last content are a stop; others are part of the answer
        by_control = (final >= first) & (_latest(named)[last] <= final)
        text = (last > first) & (~named[last] | (self.message[last] == self.message[last - 1]))
        text &= ~self.within()[last]
        by_span = np.where(by_control, _latest(runs)[final], last + ~text)
        if not np.isin(self.part, (_CONTENT, _STOP)).any():
            return by_span
        # all spans after the last one that is not called a stop
        by_part = np.maximum(_latest(self.part != _STOP)[last], first - 1) + 1
        return np.where(np.isin(self.part[last], _PARTS), by_part, by_span)


def mask_displaced_stops(documents: Documents, answers: Answers, lengths: Ints) -> None:
    """Mask each stop that no longer follows the token that it follows in its row; changes `documents`.

    Args:
        documents: one for each row, with some of the row's tokens, in order.
        lengths: int64 [rows], the number of tokens of each row before.
    """
    chosen = np.flatnonzero((documents.lengths < lengths)[answers.row] & (answers.stop < answers.end))
    if documents.origin is None or not len(chosen) or not len(documents.origin):
        return
    row, start, sizes = answers.row[chosen], answers.stop[chosen], (answers.end - answers.stop)[chosen]
    stops = ranges(start, sizes)
    before = np.repeat(np.maximum(start - 1, offsets_of(lengths)[row]), sizes)  # the token that the stop follows
    # where the stop's tokens are now; they must come as far after the token before them as in the row
    at = np.minimum(np.searchsorted(documents.origin, stops), len(documents.origin) - 1)
    expected = at - (stops - before)
    follows = (expected >= 0) & (documents.origin[np.maximum(expected, 0)] == before)
    documents.weights[at[(documents.origin[at] == stops) & ~follows]] = 0.0


def count_answers(documents: Documents, answers: Answers, spans: FlatSpans, lengths: Ints) -> dict[str, int]:
    """Return counters of answers and trained tokens for the documents that became sequences.

    - `answers`: answers with a trained token in the sequences.
    - `answers_cut`: answers of rows in the sequences that lost trained tokens.
    - `answers_without_stop`: those of `answers` whose row has a stop that is not trained as a whole.
    - `prompts_emptied`: those of `answers` whose question lost all tokens.
    - `trained_tokens.<role>`, `trained_tokens.turn_<number>`: trained tokens; turns are those of the whole row.
    - `trained_tokens.reasoning`, `trained_tokens.tool_call`: those of `trained_tokens.assistant` in these parts; with
      weights by kind also `trained_tokens.content` and `trained_tokens.stop`.

    Args:
        documents: after truncation and splitting, in the order of their rows.
        answers, spans: those of the chunk of tokens.
        lengths: int64 [rows], the number of tokens of each row before.
    """
    present, trained = _Kept.of(documents, lengths), answers.spans
    left = present.trained(answers.row, answers.start, answers.end, answers.trained)
    in_sequences = left > 0
    cut = present.rows[answers.row] & (left < answers.trained)
    unstopped = present.trained(answers.row, answers.stop, answers.end) < answers.end - answers.stop
    emptied = 0 if present.all else int((in_sequences & _emptied(spans, answers, present, offsets_of(lengths))).sum())
    return {
        ANSWERS: int(in_sequences.sum()),
        CUT: int(cut.sum()),
        WITHOUT_STOP: int((in_sequences & unstopped).sum()),
        EMPTIED: emptied,
        **_by_role_and_turn(spans, trained, present.trained(trained.row, trained.start, trained.end)),
    }


def of_answers(name: str) -> bool:
    """Return whether `count_answers` counts a counter."""
    return name in (ANSWERS, CUT, WITHOUT_STOP, EMPTIED) or name.startswith(TRAINED_OF)


def unstopped_fraction(counters: Mapping[str, int]) -> float:
    """Return the fraction of the answers in the sequences that end without their stop."""
    return counters.get(WITHOUT_STOP, 0) / max(counters.get(ANSWERS, 0), 1)


def unstopped_warning(config: PipelineConfig, counters: Mapping[str, int]) -> str | None:
    """Return a warning if more answers lack their stop than `validation.max_unstopped_fraction` allows, else None."""
    fraction, allowed = unstopped_fraction(counters), config.validation.max_unstopped_fraction
    if fraction <= allowed:
        return None
    longest, strategy = config.tokenizer.max_length, config.length.strategy or "smart"
    shorten = "" if strategy == "smart" else " `length.strategy: smart`, which shortens prompts first, or"
    return (
        f"warning: {counters[WITHOUT_STOP]:,} of {counters[ANSWERS]:,} answers ({fraction:.2%}, above "
        f"validation.max_unstopped_fraction {allowed:.2%}) lost their end and stop at max_length {longest:,}, so the "
        f"model does not learn to end them; raise tokenizer.max_length, or set{shorten} `length.strategy: drop`"
    )


@dataclass(frozen=True)
class _Kept:
    """Which tokens of a chunk are in its documents.

    Args:
        rows: bool [rows], whether the row has a document.
        whole: bool [rows], whether the document is the whole row.
        tokens, of_loss: int64, the tokens of the other rows that are in a document, and those that are trained there;
            ascending.
    """

    rows: np.ndarray
    whole: np.ndarray
    tokens: Ints
    of_loss: Ints

    @classmethod
    def of(cls, documents: Documents, lengths: Ints) -> _Kept:
        rows, origin = np.ones(len(lengths), bool), documents.origin
        if origin is None:
            return cls(rows, rows, np.zeros(0, np.int64), np.zeros(0, np.int64))
        first = offsets_of(documents.lengths)[:-1]
        row = np.searchsorted(offsets_of(lengths), origin[first], side="right") - 1
        same = documents.lengths == lengths[row]
        rows, whole = np.zeros(len(lengths), bool), np.zeros(len(lengths), bool)
        rows[row], whole[row[same]] = True, True
        index = ranges(first[~same], documents.lengths[~same]) if same.any() else slice(None)
        tokens = origin[index]
        of_loss = tokens[documents.weights[index] > 0]
        if not (tokens[1:] > tokens[:-1]).all():  # pieces overlap
            tokens = tokens[np.append(True, tokens[1:] > np.maximum.accumulate(tokens)[:-1])]
        return cls(rows, whole, tokens, of_loss)

    @property
    def all(self) -> bool:
        """Whether all documents are whole rows."""
        return bool(self.whole.all())

    def present(self, row: Ints, start: Ints, end: Ints) -> Ints:
        """Return how many tokens of each range, within a row, are in a document."""
        return self._count(self.tokens, row, start, end)

    def trained(self, row: Ints, start: Ints, end: Ints, in_chunk: Ints | None = None) -> Ints:
        """Return how many tokens of each range are trained; `in_chunk` are trained in the chunk, by default all."""
        return self._count(self.of_loss, row, start, end, in_chunk)

    def _count(self, tokens: Ints, row: Ints, start: Ints, end: Ints, whole: Ints | None = None) -> Ints:
        counts = end - start if whole is None else whole.copy()
        partial = np.flatnonzero(~self.whole[row])
        # of rows that are whole, all tokens of the range count, so that only cut rows are searched
        counts[partial] = np.searchsorted(tokens, end[partial]) - np.searchsorted(tokens, start[partial])
        return counts


def _emptied(spans: FlatSpans, answers: Answers, in_documents: _Kept, starts: Ints) -> np.ndarray:
    """Return bool [answers]: whether no token of the answer's question is left: of the last user message between the
    answer before and this one; for columns, of all inputs. `starts` is int64 [rows], the first token of each row."""
    count = len(answers.row)
    content = (spans.weight == 0) & (spans.message >= 0) & ~spans.control
    asked = np.flatnonzero(content & np.isin(spans.role, _QUESTIONS))
    row, owner = row_of(spans.counts)[asked], np.searchsorted(answers.first, asked)
    answered = np.append(answers.row, -1)[owner] == row
    asked, row, owner = asked[answered], row[answered], owner[answered]
    user, message = spans.role[asked] == _USER, spans.message[asked].astype(np.int64)
    # of several user messages before an answer, only the last one is the question
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, owner[user], message[user])
    counted = ~user | (message == last[owner])
    asked, row, owner = asked[counted], row[counted], owner[counted]
    present = in_documents.present(row, starts[row] + spans.start[asked], starts[row] + spans.end[asked])
    return (np.bincount(owner, minlength=count) > 0) & (np.bincount(owner, present, count) == 0)


def _by_role_and_turn(spans: FlatSpans, trained: _Trained, tokens: Ints) -> dict[str, int]:
    """Return the numbers of trained tokens by role, part and turn, without zeros; `tokens` is int64 [trained spans]."""
    roles, parts = (np.bincount(kind, tokens, len(SPAN_ROLES)).astype(int) for kind in (trained.role, trained.part))
    roles[_PARTS] = parts[_PARTS]
    counts: dict[str, int] = dict(zip(SPAN_ROLES, roles.tolist(), strict=True))
    spoken = np.isin(trained.role, _SPEAKERS)
    if spoken.any():
        # the number of user messages of the row up to each trained span; one of several spans counts once
        user = np.flatnonzero((spans.role == _USER) & (spans.message >= 0) & ~spans.control)
        row, message = row_of(spans.counts)[user], spans.message[user]
        user = user[np.append(True, (row[1:] != row[:-1]) | (message[1:] != message[:-1]))[: len(user)]]
        number = np.searchsorted(user, trained.place, side="right") - np.searchsorted(user, spans.offsets[trained.row])
        turn = np.clip(number[spoken], 1, LATER_TURNS)
        turns = np.bincount(turn, tokens[spoken], LATER_TURNS + 1).astype(np.int64).tolist()
        names = [*(f"turn_{number}" for number in range(LATER_TURNS)), f"turn_{LATER_TURNS}_and_later"]
        counts.update(zip(names, turns, strict=True))
    return {f"{TRAINED_OF}{name}": count for name, count in counts.items() if count}


def _latest(flags: np.ndarray) -> Ints:
    """Return, for each place, the last one up to it where the flag is set, else -1; int64, the shape of `flags`."""
    return np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1)) if len(flags) else np.zeros(0, np.int64)
