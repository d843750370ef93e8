"""Who speaks in a conversation: the names that its roles have in the wild, and the fields that say so."""

from __future__ import annotations

CALL_ROLES = ("function_call", "tool_call", "tool_calls")
"""Speakers whose message is the JSON text of a call, or of a list of calls, by the assistant."""

ROLE_NAMES: dict[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "customer": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "chatbot": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    **dict.fromkeys(CALL_ROLES, "assistant"),
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"""Names of a speaker's role, in lower case, and the role each stands for."""

SPEAKERS, SAID = ("role", "from", "speaker"), ("content", "value", "text", "message")
"""Fields that make a struct a message: who speaks, and what is said."""


def role_of(name: str) -> str | None:
    """The role that a speaker's name stands for, None where it is not known."""
    return ROLE_NAMES.get(name.strip().lower())
