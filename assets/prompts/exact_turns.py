"""Exact turns: trained in the context, and with the text, that inference has.

`texts_of` splits the conversations of a shape into texts in which every turn is as at inference; turns whose texts
start with each other share a text. Where the template does not write a turn after the text that it prompts with, its
text continues the prompt (see `continued_prompt`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.conversations import Conversations
from tokenloom.assets.prompts.trained_turns import ShapeFormat, TooManyTurnsError, TrainedTurn, start_of
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.rows import count_rows, first_of_row
from tokenloom.errors import TemplateError


def texts_of(chat: ShapeFormat, group: Conversations) -> list[tuple[ShapeFormat, Conversations]]:
    """Split the conversations of a shape into texts with exact turns, the shortest first, each with its format.

    Each text is the start of the conversation. A turn is trained in the longest text that is the same up to the turn's
    end, and has weight 0 in all others. A turn that is not exact in any text is trained once like the others.
    """
    texts: list[tuple[ShapeFormat, Conversations]] = []
    chat = chat.of_texts(len(group.turns))
    trained = chat.chat.trained(group.turns)
    left = [index for index in trained if group.turns[index].role == "assistant"]
    others, text = len(left) < len(trained), group
    while left:
        found = None
        with suppress(TooManyTurnsError):
            found = _divided(chat, text, left)
        if found is None:  # the renderer rejects it, with the reason
            return [(chat, group)]
        left = [index for index in left if index not in found.done]
        if found.kept or others:
            texts.append((found.chat, _masked(found.text, left)))
        others = False
        if left:
            text = start_of(group, left[-1] + 1)
            text = _masked(text, set(range(len(text.turns))).difference(left))
    return texts[::-1] or [(chat, group)]


def verdict_by_row(out: ChunkOutput) -> ChunkOutput:
    """Return the texts of the rows without a rejected text, and one reject for each other row."""
    rejects = out.rejects.filter(pa.array(first_of_row(out.rejects)))
    table = out.table
    if rejects.num_rows:
        table = table.filter(pc.invert(pc.is_in(table[ROW], rejects[ROW].combine_chunks()))).combine_chunks()
    return replace(out, table=table, rejects=rejects, rows_out=count_rows(table))


@dataclass(frozen=True)
class _Divided:
    """A text that is divided into its turns.

    Args:
        kept: the messages whose turns it has as at inference.
        done: the messages that need no other text.
    """

    chat: ShapeFormat
    text: Conversations
    kept: Sequence[int]
    done: Collection[int]


def _divided(chat: ShapeFormat, text: Conversations, left: Sequence[int]) -> _Divided | None:
    """Return a text for some turns, or None if there is none.

    A text that cannot be divided into its turns is cut after the last of them, then trains only that one. If the last
    turn is not exact so, the text continues the generation prompt.

    Args:
        left: indices of the turns that are still to be trained; the text trains them.
    """
    last, ended = left[-1], start_of(text, left[-1] + 1)
    shorter = [ended, _masked(ended, left[:-1])]
    plain = next(_turns_of(chat, [text, *shorter]), None)
    found = None
    if plain is not None:
        tried, turns = plain
        same = [turn for turn in turns if turn.same]
        kept = [turn.message for turn in same if turn.prompted or not _continues(chat, tried, turn.message)]
        at_end = len(tried.turns) == len(ended.turns)
        found = _Divided(chat, tried, kept or [last] * at_end, {*kept, *[last] * at_end})
        if last in kept or not at_end:
            return found
    for tried, turns in _turns_of(chat.continuing(), shorter):
        kept = [turn.message for turn in turns if turn.exact]
        if last in kept:
            return _Divided(chat.continuing(), tried, kept, kept)
    return found


def _turns_of(chat: ShapeFormat, texts: Sequence[Conversations]) -> Iterator[tuple[Conversations, list[TrainedTurn]]]:
    """Divide texts into their turns. Skips texts for which the template does not allow it."""
    for text in texts:
        try:
            yield text, chat.turns(text)
        except TooManyTurnsError:
            raise
        except TemplateError:
            continue


def _continues(chat: ShapeFormat, text: Conversations, message: int) -> bool:
    """Return whether a turn is as at inference if its text is written as a continuation of the generation prompt."""
    alone = start_of(text, message + 1)
    alone = _masked(alone, range(message))
    return any(
        turn.message == message and turn.exact for _, turns in _turns_of(chat.continuing(), [alone]) for turn in turns
    )


def _masked(group: Conversations, messages: Collection[int]) -> Conversations:
    masked = frozenset(messages)
    turns = (replace(turn, weight=0.0) if index in masked else turn for index, turn in enumerate(group.turns))
    return replace(group, turns=tuple(turns))
