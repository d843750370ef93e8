"""Items of OpenAI's Responses API: messages, calls, outputs and reasoning, as conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.assets.raw.sessions.conversation import Conversation, Object, UnfitSessionError, content_of
from tokenloom.assets.stage.rejects import NO_CONTEXT

SILENT = {
    *("ghost_snapshot", "web_search_call", "image_generation_call", "file_search_call", "code_interpreter_call"),
    *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "additional_tools"),
}
"""Items that add nothing to a message: what the server did itself, without recorded results, and notes."""
ENCRYPTED = ("compaction", "compaction_summary", "context_compaction")
_ARGUMENTS = ("arguments", "input", "action", "operation")
_ROLES = ("user", "assistant", "system", "developer")


def is_item(value: Any) -> bool:
    """Return whether a value has the type of an item other than a message."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    known = isinstance(kind, str) and (kind in SILENT or kind in ENCRYPTED or kind in ("reasoning", "item_reference"))
    return known or (isinstance(kind, str) and kind.endswith(("_call", "_call_output")))


def add_item(conversation: Conversation, item: Object, train: bool = True) -> str | None:
    """Add an item to a conversation; return its type if it is silent.

    Args:
        train: whether the assistant's words are trained.

    Raises:
        UnfitSessionError: the item is not understood, or its content is not in the data.
    """
    kind = item.get("type", "message" if "role" in item else None)
    kind = kind if isinstance(kind, str) else repr(kind)
    if kind == "message":
        _add_message(conversation, item, train)
    elif kind == "reasoning":
        _add_reasoning(conversation, item, train)
    elif kind in SILENT:
        return kind
    elif kind in ENCRYPTED or kind == "item_reference":
        raise UnfitSessionError(NO_CONTEXT, f"an item of type {kind} replaces messages that the data does not have")
    elif kind == "mcp_call":
        call_id = item.get("id")
        conversation.call(call_id, item.get("name"), item.get("arguments"), train)
        conversation.result(call_id, item.get("output") or item.get("error") or "")
    elif kind.endswith("_output"):
        output = next((item[name] for name in ("output", "tools") if item.get(name) is not None), "")
        conversation.result(item.get("call_id"), _output(output))
    elif kind.endswith("_call"):
        name = item.get("name", kind.removesuffix("_call"))
        given = next((item[name] for name in _ARGUMENTS if item.get(name) is not None), {})
        if kind == "custom_tool_call":
            given = {"input": given}
        if isinstance(given, dict):
            given = {name: value for name, value in given.items() if value is not None and name != "type"}
        conversation.call(item.get("call_id") or item.get("id"), name, given, train)
    else:
        raise UnfitSessionError("unknown_item", f"an item of type {kind!s:.80} is not understood")
    return None


def _add_message(conversation: Conversation, item: Object, train: bool) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise UnfitSessionError("unknown_item", f"a message has the role {role!s:.80}")
    if role != "assistant":
        conversation.say("system" if role == "developer" else role, content_of(content))
        return
    parts = [
        {"type": "text", "text": part.get("refusal")}
        if isinstance(part, dict) and part.get("type") == "refusal"
        else part
        for part in (content if isinstance(content, list) else [content])
    ]
    text = content_of(parts, "")
    if not isinstance(text, str):
        raise UnfitSessionError("unknown_part", "an answer has a part that is not text")
    conversation.text(text, train, apart=True)


def _add_reasoning(conversation: Conversation, item: Object, train: bool) -> None:
    """Add reasoning that is the model's own text: `content`, if nothing of it is encrypted. Summaries are omitted."""
    text = content_of(item.get("content") or "", "")
    if text and isinstance(text, str) and not item.get("encrypted_content"):
        conversation.reasoning(text, train)
    elif text or item.get("summary") or item.get("encrypted_content"):
        conversation.omit_reasoning()


def _output(value: Any) -> Any:
    """Return the text of a call's output; objects of `content` and `success` are of early versions of Codex."""
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return value["content"]
    return content_of(value)
