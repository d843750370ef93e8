"""The canonical forms that the rows of every dataset are converted to, as Arrow types."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

TOOL_CALL = pa.struct([("id", pa.string()), ("name", pa.string()), ("arguments", pa.string())])
"""A tool call of an assistant message. `arguments` is JSON text; `id` is null if the data has none."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of messages with the assistant's reasoning before the answer, in data and in templates."""

MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("name", pa.string()),
        ("tool_calls", pa.list_(TOOL_CALL)),
        ("weight", pa.float32()),
        ("reasoning", pa.string()),
    ]
)
"""One message.

- role: system, user, assistant or tool.
- content: text, never null.
- name: of a speaker or tool; can be null.
- tool_calls, reasoning: null if the message has none.
- weight: the loss weight of its trained tokens that the data declares (`train: false` is 0); null if
  `prompt_template.train_on` decides.
"""

MESSAGES = pa.list_(MESSAGE)

FORMS: Mapping[str, Mapping[str, pa.DataType]] = {
    "text": {"text": pa.string()},
    "completion": {"prompt": pa.string(), "completion": pa.string(), "system": pa.string()},
    "messages": {"messages": MESSAGES, "tools": pa.string()},
    "preference": {"prompt": MESSAGES, "chosen": MESSAGES, "rejected": MESSAGES},
    "kto": {"prompt": MESSAGES, "completion": MESSAGES, "label": pa.bool_()},
}
"""The columns of each form, in addition to the row's position; none is null. The form `fields` instead has one string
column per field of the YAML's template. `tools` is JSON text, empty if a row has no tools."""
