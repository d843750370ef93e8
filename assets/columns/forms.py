"""The canonical forms: what every dataset's rows become, as Arrow types."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

TOOL_CALL = pa.struct([("id", pa.string()), ("name", pa.string()), ("arguments", pa.string())])
"""One call of a tool by an assistant message; `arguments` is JSON text, `id` is null where the data has none."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of messages that hold what an assistant thought before it answered, in data and as templates read them."""

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
"""One message: `role` is system, user, assistant or tool; `content` is text, never null; `name` (of a speaker or a
tool), `tool_calls` and `reasoning` (what was thought before the answer) are null where there are none; `weight` is what
the data says each trained token counts (`train: false` is 0), null where `prompt_template.train_on` decides."""

MESSAGES = pa.list_(MESSAGE)

FORMS: Mapping[str, Mapping[str, pa.DataType]] = {
    "text": {"text": pa.string()},
    "completion": {"prompt": pa.string(), "completion": pa.string(), "system": pa.string()},
    "messages": {"messages": MESSAGES, "tools": pa.string()},
    "preference": {"prompt": MESSAGES, "chosen": MESSAGES, "rejected": MESSAGES},
    "kto": {"prompt": MESSAGES, "completion": MESSAGES, "label": pa.bool_()},
}
"""Columns of each form besides the row's position, none of them null. A `fields` form has a string column for each
field of the YAML's template instead. `tools` is JSON text, empty where a row has none."""
