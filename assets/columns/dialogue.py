"""Conversations, and prompts with or without their completions, as messages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.history import alternating_turns, with_earlier
from tokenloom.assets.columns.messages import (
    no_messages,
    shared_columns,
    slice_messages,
    to_messages,
    with_system,
)
from tokenloom.assets.columns.rejected_rows import Problem, empty_answer, empty_prompt
from tokenloom.assets.columns.source_expressions import Source, Turns
from tokenloom.assets.columns.text_values import values_of
from tokenloom.assets.stage.forms import has_calls
from tokenloom.resources.tables.flags import flags_of
from tokenloom.resources.tables.nested_paths import list_values
from tokenloom.resources.tables.ragged import offsets_of

Columns = dict[str, pa.Array]


def messages_form(table: pa.Table, sources: Mapping[str, Source]) -> tuple[dict[str, pa.Array], list[Problem]]:
    """Return the form `messages`, and the rows that do not fit."""
    values, _ = values_of(table, sources["messages"], "messages")
    messages, problems = conversation_of(table, sources, "messages", None)
    problems.append(empty_answer(messages, "messages", "no assistant message holds text or a tool call", values))
    messages, unfit = with_system(messages, table, sources)
    shared, more = shared_columns(table, sources)
    return {"messages": messages, **shared}, [*problems, *unfit, *more]


def dialogue_form(table: pa.Table, sources: Mapping[str, Source]) -> tuple[Columns, list[Problem]]:
    """Return the form `dialogue`: prompt and completion as messages, and the rows that do not fit."""
    prompt, completion, problems = prompt_and_completion(table, sources)
    shared, unfit = shared_columns(table, sources)
    return {"prompt": prompt, "completion": completion, **shared}, [*problems, *unfit]


def prompt_only_form(table: pa.Table, sources: Mapping[str, Source]) -> tuple[Columns, list[Problem]]:
    """Return the form `prompt_only`: prompts as messages, and the rows that do not fit."""
    prompt, problems = prompt_of(table, sources)
    shown, _ = values_of(table, sources["prompt"], "prompt")
    problems.append(empty_prompt(prompt, "empty_prompt", "the prompt is empty", shown))
    problems.append(started_answer(prompt, None, shown))
    prompt, unfit = with_earlier(prompt, table, sources)
    shared, more = shared_columns(table, sources)
    return {"prompt": prompt, **shared}, [*problems, *unfit, *more]


def prompt_and_completion(table: pa.Table, sources: Mapping[str, Source]) -> tuple[pa.Array, pa.Array, list[Problem]]:
    """Return each row's prompt and completion as messages, and the rows in which either is empty."""
    prompt, problems = prompt_of(table, sources)
    completion, unfit = conversation_of(table, sources, "completion", "assistant")
    shown, _ = values_of(table, sources["completion"], "completion")
    problems += unfit
    if "prompt" not in sources:
        prompt, completion = _before_last_answer(completion)
    else:
        problems.append(started_answer(prompt, completion, shown))
    problems.append(empty_prompt(prompt, "empty_prompt", "the prompt is empty", shown))
    problems.append(empty_answer(completion, "completion", "completion has no answer", shown))
    prompt, unfit = with_earlier(prompt, table, sources)
    return prompt, completion, [*problems, *unfit]


def conversation_of(
    table: pa.Table, sources: Mapping[str, Source], role: str, speaker: str | None
) -> tuple[pa.Array, list[Problem]]:
    """Return the values of a role as messages; plain text is a message of the speaker, if there is one."""
    values, problems = values_of(table, sources[role], role)
    if isinstance(sources[role], Turns):
        messages, unfit = alternating_turns(values, role)
    else:
        messages, unfit = to_messages(values, role, speaker)
    return messages, [*problems, *unfit]


def prompt_of(table: pa.Table, sources: Mapping[str, Source]) -> tuple[pa.Array, list[Problem]]:
    """Return the row's own prompt without an empty assistant message at its end; empty for rows without a prompt."""
    if "prompt" not in sources:
        return no_messages(table.num_rows), []
    prompt, problems = conversation_of(table, sources, "prompt", "user")
    lengths, flat = list_values(prompt)
    ends = offsets_of(lengths)[1:][lengths > 0] - 1
    last = flat.take(pa.array(ends))
    empty = flags_of(pc.equal(pc.struct_field(last, "content"), ""))
    empty &= flags_of(pc.equal(pc.struct_field(last, "role"), "assistant")) & ~has_calls(last)
    ends_empty = np.zeros(len(lengths), bool)
    ends_empty[lengths > 0] = empty
    return slice_messages(prompt, np.zeros_like(lengths), lengths - ends_empty), problems


def started_answer(prompt: pa.Array, answer: pa.Array | None, shown: pa.Array) -> Problem:
    """Return the problem of prompts that end with an assistant message which the answer continues.

    Args:
        prompt, answer: conversations [rows]; None: the answer is still to be generated.
    """
    lengths, flat = list_values(prompt)
    last = flat.take(pa.array(offsets_of(lengths)[1:] - 1, mask=lengths == 0))
    flags = flags_of(pc.equal(pc.struct_field(last, "role"), "assistant"))
    flags[flags] = ~has_calls(last.filter(pa.array(flags)))
    if answer is not None and flags.any():
        sizes, said = list_values(answer)
        first = pc.struct_field(said, "role").take(pa.array(offsets_of(sizes)[:-1], mask=sizes == 0))
        flags &= flags_of(pc.equal(first, "assistant"))
    message = "the prompt ends with an assistant message, the start of the answer, which would become a turn of its own"
    return Problem(flags, "started_answer", "prompt", message, shown)


def _before_last_answer(conversations: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Split each conversation before its last message of the assistant; without one, it is all prompt."""
    lengths, flat = list_values(conversations)
    answers = np.flatnonzero(flags_of(pc.equal(pc.struct_field(flat, "role"), "assistant")))
    starts = offsets_of(lengths)[:-1]
    last = np.append(-1, answers)[np.searchsorted(answers, starts + lengths)]
    before = np.where(last >= starts, last - starts, lengths)
    return slice_messages(conversations, np.zeros_like(before), before), slice_messages(
        conversations, before, lengths - before
    )
