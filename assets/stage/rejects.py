"""Rejected rows: which, by which stage, why, and what to do about them.

A remedy is not part of a stored reject, so that better advice does not change the digest of any output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_TEMPLATE = "set tokenizer.chat_template to a template that writes them (`tokenloom templates` lists the built-in ones)"
_MARKED = "set tokenizer.chat_template to a template with {% generation %} marks, such as chatml"
_CONTROL = "set tokenizer.control_tokens_in_content: split to tokenize it as plain text"
_EMPTY = "drop such rows with dataset.filters, or map another column with dataset.column_mapping"
_COLUMN = "map a column of another kind with dataset.column_mapping"

REMEDIES: Mapping[str, Mapping[str, str]] = {
    "raw": {
        "invalid_json": "correct the line; each line must be one JSON object",
        "invalid_utf8": "set dataset.encoding to the encoding of the file",
        "lone_surrogate": "replace the half of the pair, such as \\ud83d, in the data",
        "nested_too_deeply": "write the value as text, or with fewer levels",
        "not_a_list": "set dataset.reader.root to the path of a list of rows",
        "not_an_object": "write each row as an object, or set dataset.reader.root to the list of rows",
        "too_large": "raise dataset.reader.max_record_bytes",
        "too_many_fields": "put the fields into one object in the row",
        "wrong_field_count": "quote fields that contain the delimiter, or set dataset.reader.delimiter or quote",
        "malformed_quotes": "double the quotes inside quoted fields, or set dataset.reader.escape or quote",
    },
    "columns": {
        "empty_answer": _EMPTY,
        "empty_prompt": _EMPTY,
        "empty_text": _EMPTY,
        "index_out_of_range": "drop rows with fewer elements with dataset.filters",
        "invalid_json": "write the value as JSON, or " + _COLUMN,
        "invalid_tool_call": "write calls as {name, arguments} in one place of the message",
        "invalid_weight": "give each message one weight: weight: 0.5, or train: false; the weight of a row is a number "
        "from 0 on",
        "missing_content": "give each message a content, or tool calls",
        "no_common_prompt": "map the prompt with dataset.column_mapping, or start both answers with the same messages",
        "no_messages": "drop such rows with dataset.filters: len(messages) > 0",
        "not_a_label": "write true or false, or map another column as the label with dataset.column_mapping",
        "not_messages": "write a list of {role, content}, or " + _COLUMN,
        "not_template_kwargs": "write an object, or its JSON text",
        "not_text": "give it as text, or " + _COLUMN,
        "not_tools": "write a list of tools in OpenAI's format, or its JSON text",
        "not_turns": "write a list of [question, answer]",
        "same_answers": "drop such rows with dataset.filters: chosen != rejected",
        "started_answer": "move it to the start of the answer, or end the prompt with the user's message",
        "unknown_role": "rename the role in the data",
    },
    "prompts": {
        "content_dropped": "set tokenizer.chat_template to a template that writes every message, such as chatml "
        "(`tokenloom templates`), or train on rows that it can represent",
        "content_parts": "join the parts of the content to one text",
        "content_repeated": "mask the message with train: false, or set tokenizer.chat_template to another one",
        "control_token_in_content": "write it differently in the data",
        "field_ignored": "move the text to content, reasoning_content or tool_calls, set train: false, or use a chat "
        "template that writes the field",
        "generation_marks": "use a template with one {% generation %} block per answer, or omit weights of messages",
        "invalid_ranges": "correct the ranges: characters of the content from 0, both ends included, without overlaps",
        "kind_unknown": "give the kinds the same weight in prompt_template.train_on, or use another chat template",
        "no_prompt": "map the prompt with dataset.column_mapping",
        "not_text": "give it as text, or do not train it: train: false",
        "reasoning": _MARKED,
        "reasoning_ignored": _TEMPLATE,
        "template_kwargs": "correct the row's chat_template_kwargs",
        "template_refused": "change the rows as the template asks, or set tokenizer.chat_template to one that takes "
        "them, such as chatml (`tokenloom templates`)",
        "too_few_examples": "lower prompt_template.few_shot.count",
        "too_many_turns": "split the conversation into shorter ones",
        "tool_calls": _MARKED,
        "tool_calls_ignored": _TEMPLATE,
        "tools_ignored": _TEMPLATE,
        "tools_not_json": "write tools as the JSON text of a list",
        "unknown_role": "rename the role, or set tokenizer.chat_template to one that writes it, such as chatml",
        "unverified_ranges": "use a chat template that writes contents unchanged, such as chatml",
        "unverified_spans": _MARKED,
    },
    "tokens": {"control_token_in_content": _CONTROL},
    "sequences": {
        "answer_cut_off": "raise tokenizer.max_length, or set length.strategy to smart, which shortens prompts first, "
        "or to drop_turns for conversations",
        "nothing_trained": "drop such rows with dataset.filters, or give more kinds a weight in train_on",
        "too_long": "raise tokenizer.max_length, or set length.strategy: smart, which also shortens the last turn",
    },
}
"""Remedies by stage and code."""


def explained(stage: str, code: str, message: str) -> str:
    """Return the message of a reject with its remedy, unless it names one itself, after a semicolon."""
    remedy = "" if "; " in message else REMEDIES.get(stage, {}).get(code, "")
    return f"{message}; {remedy}" if remedy else message


ROW = "_row"
"""Column with a row's position within its raw chunk, int32."""

EXCERPT_CHARACTERS = 200
"""Maximum length of an excerpt."""

REJECTS = pa.schema(
    [
        (ROW, pa.int32()),
        ("stage", pa.string()),
        ("code", pa.string()),
        ("field", pa.string()),
        ("message", pa.string()),
        ("excerpt", pa.string()),
    ]
)


def no_rejects() -> pa.Table:
    """Return an empty table of rejects."""
    return REJECTS.empty_table()


def reject_rows(
    rows: pa.Array | npt.NDArray[np.integer],
    stage: str,
    code: str,
    field: str,
    message: str,
    excerpts: pa.Array | Sequence[str],
) -> pa.Table:
    """Return the rejects table of rows that are rejected for one reason.

    Args:
        rows: positions of the rows within their raw chunk.
        stage: the stage that rejects them.
        code: the reason, for programs.
        field: column or field at fault, or "".
        message: the reason, for people.
        excerpts: the offending value of each row; long ones are shortened.
    """
    positions = pa.array(np.asarray(rows, np.int32)) if isinstance(rows, np.ndarray) else rows
    shown = pc.utf8_slice_codeunits(pa.array(excerpts, pa.string()).fill_null(""), 0, EXCERPT_CHARACTERS)
    constant = [pa.repeat(pa.scalar(value, pa.string()), len(positions)) for value in (stage, code, field, message)]
    return pa.Table.from_arrays([positions.cast(pa.int32()), *constant, shown.cast(pa.string())], schema=REJECTS)


def join_rejects(tables: Sequence[pa.Table]) -> pa.Table:
    """Return all rejects of a chunk, in row order."""
    if not tables:
        return no_rejects()
    return pa.concat_tables(tables).sort_by(ROW).combine_chunks()


def summarize(rejects: Sequence[tuple[pa.Table, Callable[[int], str]]], reasons: int = 3) -> str:
    """Return the most frequent codes among rejects in one line, each with its count, remedy and one example.

    Args:
        rejects: tables of rejects, each with a function that returns the place in the source of a row position.
        reasons: maximum number of codes.
    """
    numbered = [
        table.append_column("chunk", pa.repeat(pa.scalar(number, pa.int32()), table.num_rows))
        for number, (table, _) in enumerate(rejects)
    ]
    counted = pa.concat_tables(numbered).group_by(["stage", "code", "field"], use_threads=False)
    example = [(name, "first") for name in ("message", "excerpt", "chunk", ROW)]
    rows = counted.aggregate([(ROW, "count"), *example]).sort_by([(f"{ROW}_count", "descending")]).slice(0, reasons)
    lines = []
    for row in rows.to_pylist():
        where = f" in {row['field']}" if row["field"] else ""
        place = rejects[row["chunk_first"]][1](row[f"{ROW}_first"])
        message = explained(row["stage"], row["code"], row["message_first"])
        lines.append(
            f"{row[f'{ROW}_count']} × {row['code']}{where} ({message}; e.g. {place}: {row['excerpt_first'][:60]!r})"
        )
    return ", ".join(lines)
