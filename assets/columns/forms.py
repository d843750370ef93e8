"""The canonical forms that the rows of every dataset are converted to, as Arrow types."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.flags import Flags, flags_of

ROLES = ("system", "user", "assistant", "tool")
"""The roles that masks distinguish."""

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Fields of messages with the assistant's reasoning before the answer, in data and in templates; the first counts."""

ROW_WEIGHT = "_weight"
"""Column with the number, float32, that multiplies the weights of a row's trained tokens; only if it is mapped."""

RANGES = "tokenloom:ranges"
"""Name in a message's `fields` of the weights of parts of its text, which templates do not get: for `content` and
`reasoning`, lists of start and end in bytes, and a weight, or null for the message's own."""

MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("reasoning", pa.string()),
        ("weight", pa.float32()),
        ("fields", pa.string()),
    ]
)
"""One message.

- role: one of `ROLES`; any other role of the data that only a chat template can interpret.
- content: text, never null. For content that is neither text nor text parts: its JSON text.
- reasoning: null if the message has none.
- weight: the loss weight of its trained tokens that the data declares (`train: false` is 0); null if
  `prompt_template.train_on` decides.
- fields: the message as a JSON object with all fields that are not null, in the source's order; null if it has only a
  role and a text. Values that other columns hold are null in it: `role`, unless the source has another name for the
  role; `content`, or its text in a list with one text part; the reasoning. `tool_calls` are in OpenAI's layout.
"""

MESSAGES = pa.list_(MESSAGE)

SEGMENT = pa.struct([("text", pa.string()), ("weight", pa.float32())])
"""A part of a text, with its loss weight; neither is null."""

_SHARED = {"tools": pa.string(), "template_kwargs": pa.string()}

FORMS: Mapping[str, Mapping[str, pa.DataType]] = {
    "text": {"text": pa.string()},
    "segments": {"segments": pa.list_(SEGMENT)},
    "completion": {"prompt": pa.string(), "completion": pa.string(), "system": pa.string()},
    "messages": {"messages": MESSAGES, **_SHARED},
    "dialogue": {"prompt": MESSAGES, "completion": MESSAGES, **_SHARED},
    "prompt_only": {"prompt": MESSAGES, **_SHARED},
    "preference": {"prompt": MESSAGES, "chosen": MESSAGES, "rejected": MESSAGES, **_SHARED},
    "kto": {"prompt": MESSAGES, "completion": MESSAGES, "label": pa.bool_(), **_SHARED},
}
"""The columns of each form, in addition to the row's position; none is null. The form `fields` instead has one string
column per field of the YAML's template. `tools` is the JSON text of a list, `template_kwargs` (variables of the chat
template) that of an object; both are empty if a row has none."""

PROMPTED = tuple(form for form, columns in FORMS.items() if columns.get("prompt") == MESSAGES)
"""Forms with prompts as messages. They always go through the chat template, and only completions are trained."""


def has_calls(messages: pa.Array) -> Flags:
    """Return bool [messages]: which messages have tool calls.

    Args:
        messages: of type `MESSAGE`.
    """
    fields = pc.struct_field(messages, "fields")
    called = flags_of(pc.match_substring(fields, '"tool_calls"'))
    for index in np.flatnonzero(called):
        called[index] = bool(json.loads(fields[index].as_py()).get("tool_calls"))
    return called
