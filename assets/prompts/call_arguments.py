"""The form in which the arguments of tool calls reach a chat template: JSON text, or an object.

Data have either, and so have templates: some concatenate text, some write an object as JSON, some read its items. A
template gets the arguments as in the source. If it refuses them, or writes text as a quoted JSON string or an object as
Python's `repr`, it gets the other form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tokenloom.assets.prompts.conversations import Message
from tokenloom.errors import TemplateError
from tokenloom.resources.tables.json_depth import read_json_value

Write = Callable[[Sequence[Message]], str]
"""Renders messages; raises `TemplateError` if the template refuses them."""

Form = Callable[[Any], Any]
"""Converts a call's arguments; what it cannot convert is returned unchanged."""

_PROBE = {"\ue0d0": "\ue0d1"}


def parsed(arguments: Any) -> Any:
    """Return the object that arguments are the JSON text of; other arguments unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = read_json_value(arguments)
    except ValueError:
        return arguments
    return found if isinstance(found, dict) else arguments


def dumped(arguments: Any) -> Any:
    """Return an object as JSON text; other arguments unchanged."""
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


def unchanged(arguments: Any) -> Any:
    return arguments


def with_arguments(messages: Sequence[Message], form: Form) -> list[Message]:
    """Return messages with the arguments of their calls in another form."""
    converted = []
    for message in messages:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [_converted(call, form) for call in calls]}
        converted.append(message)
    return converted


def readable_form(messages: Sequence[Message], write: Write) -> Form:
    """Return the form of arguments that a template renders: as in the source if possible.

    Args:
        messages: a conversation.
        write: renders messages with the template.
    """
    given = [_function(call).get("arguments") for message in messages for call in message.get("tool_calls") or ()]
    texts = any(parsed(arguments) is not arguments for arguments in given)
    objects = any(isinstance(arguments, dict) for arguments in given)
    if not (texts or objects):
        return unchanged
    text = json.dumps(_PROBE, ensure_ascii=False)
    # a template takes text if it writes it as it is, and objects unless it writes Python's repr of them
    takes_text = text in _written(messages, write, text)
    written = _written(messages, write, _PROBE)
    takes_objects = bool(written) and str(_PROBE) not in written
    if texts and not takes_text and takes_objects:
        return parsed
    return dumped if objects and not takes_objects and takes_text else unchanged


def _written(messages: Sequence[Message], write: Write, probe: Any) -> str:
    """Return the text with a probe in place of all arguments that have both forms; "" if the template refuses it."""

    def form(arguments: Any) -> Any:
        return probe if isinstance(arguments, dict) or parsed(arguments) is not arguments else arguments

    try:
        return write(with_arguments(messages, form))
    except TemplateError:
        return ""


def _converted(call: Any, form: Form) -> Any:
    function = _function(call)
    if "arguments" not in function:
        return call
    function = {**function, "arguments": form(function["arguments"])}
    return {**call, "function": function} if "function" in call else function


def _function(call: Any) -> dict[str, Any]:
    """Return the object that holds a call's name and arguments."""
    function = call.get("function", call) if isinstance(call, dict) else {}
    return function if isinstance(function, dict) else {}
